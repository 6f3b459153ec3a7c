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
    """Verify drafts of UEs until Ctrl-C.

    Examples:

        testbed bs serve

        testbed bs serve --engine vllm --model Qwen/Qwen2.5-7B-Instruct --dtype bfloat16

        testbed bs serve --engine llama --model Qwen2.5-7B-Q8_0.gguf

        testbed bs serve --bind tcp://0.0.0.0:5555 --keys keys

        testbed bs serve --scheduler slo --metrics bs.jsonl

        testbed bs serve --window-controller max_window=8

        testbed bs serve --monitor 9100
    """
    from testbed.bs.scheduling.registry import check_options
    from testbed.bs.serve import serve as run
    from testbed.experiments.inputs.coefficients import coefficients as named

    config = _complete(config)
    check_options(config)
    known = named(config.coefficients) if config.coefficients else None
    paced = named(config.pace) if config.pace else None
    if config.pace and paced is None:
        raise BadInput(f"--pace takes a profile or a file, not {config.pace}")
    stdout = claim_stdout() if as_json else sys.stdout

    def ready(addresses: list[str], offer: Offer, view: str | None) -> None:
        if as_json:
            document = {"ready": True, "bind": ",".join(addresses), "pid": os.getpid(), "model": offer.model}
            print_json(document | ({"monitor": view} if view else {}), stdout)
        note(f"serving {offer.model} on {', '.join(addresses)} (pid {os.getpid()}); Ctrl-C stops it")
        if view:
            note(f"live view: {view}")

    run(config, ready, known, paced, (lambda _: None) if as_json else note)


def _complete(config: ServeConfig) -> ServeConfig:
    """The configuration with paths for names, and the bundled target, judge and head where none are given."""
    from testbed.bs.engines.registry import ENGINES
    from testbed.bs.judging.registry import JUDGES, judge_kind
    from testbed.experiments.inputs.pair import target_for
    from testbed.models.bundle import head_directory

    if ENGINES.choose(config.engine).needs_model:
        config = msgspec.structs.replace(config, model=target_for(config.engine, config.model))
    kind = judge_kind(config.judge, config.head, config.quality_budget)
    head = str(head_directory(config.head)) if JUDGES[kind].needs_head else None
    return msgspec.structs.replace(config, judge=kind, head=head)
