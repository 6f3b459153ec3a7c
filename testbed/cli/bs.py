"""`testbed bs`: the edge server."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import msgspec

from testbed.cli.options import ReadyJson, configured
from testbed.cli.output import claim_stdout, note, print_json
from testbed.cli.screens import CommandGroup
from testbed.config import ServeConfig
from testbed.errors import BadInput

if TYPE_CHECKING:
    from testbed.bs.intake import Offer

app = CommandGroup(no_args_is_help=True, help="The base station: verifies drafts with the target model.")


@app.callback()
def group() -> None:
    """The base station: verifies drafts with the target model."""


@app.command()
@configured(ServeConfig)
def serve(config: ServeConfig, as_json: ReadyJson = False) -> None:
    """Serve verification until Ctrl-C.

    Examples:

        testbed bs serve

        testbed bs serve --engine vllm --model Qwen/Qwen2.5-7B-Instruct --dtype bfloat16

        testbed bs serve --bind tcp://0.0.0.0:5555 --keys keys

        testbed bs serve --head runs/head

        testbed bs serve --judge budget --quality-budget 0.01

        testbed bs serve --scheduler slo --metrics bs.jsonl

        testbed bs serve --metrics bs.jsonl --power auto

        testbed bs serve --window-controller max_window=8

        testbed bs serve --pace a100-qwen3-32b

        testbed bs serve --monitor 9100
    """
    from testbed.bs.judging.registry import WITH_HEAD, judge_kind
    from testbed.bs.serve import serve as run
    from testbed.experiments.inputs.coefficients import coefficients as named
    from testbed.models.bundle import bundled, head_directory

    if config.engine != "synthetic" and config.model is None:
        config = msgspec.structs.replace(config, model=str(bundled().require("target")))
    kind = judge_kind(config.judge, config.head, config.quality_budget)
    head = str(head_directory(config.head)) if kind in WITH_HEAD else None
    config = msgspec.structs.replace(config, judge=kind, head=head)
    _check(config)
    known = named(config.coefficients) if config.coefficients else None
    paced = named(config.pace) if config.pace else None
    if config.pace and paced is None:
        raise BadInput(f"--pace takes a profile or a file, not {config.pace}: what this engine takes is no pace")
    stdout = claim_stdout() if as_json else sys.stdout

    def ready(addresses: list[str], offer: Offer, view: str | None) -> None:
        if as_json:
            document = {"ready": True, "bind": ",".join(addresses), "pid": os.getpid(), "model": offer.model}
            print_json(document | ({"monitor": view} if view else {}), stdout)
        note(f"serving {offer.model} on {', '.join(addresses)} (pid {os.getpid()}); Ctrl-C stops it")
        if view:
            note(f"live view: {view}")

    run(config, ready, known, paced)


def _check(config: ServeConfig) -> None:
    """Refuse options that the scheduler would not look at."""
    coefficients = None if config.window_controller is not None else config.coefficients
    for name, value, of in (
        ("coefficients", coefficients, "slo"),
        ("chunk-tokens", config.chunk_tokens, "fcfs"),
    ):
        if value is not None and config.scheduler in ("slo", "fcfs") and config.scheduler != of:
            raise BadInput(f"--{name} goes with --scheduler {of}, not {config.scheduler}")
