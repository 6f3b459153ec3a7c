"""`testbed bs`: the edge server."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.output import claim_stdout, note, print_json
from testbed.config import ServeConfig
from testbed.errors import BadInput

if TYPE_CHECKING:
    from testbed.bs.intake import Offer

app = typer.Typer(no_args_is_help=True, help="The base station: verifies drafts with the target model.")
DEFAULT = ServeConfig()


@app.callback()
def group() -> None:
    """The base station: verifies drafts with the target model."""


@app.command()
def serve(
    engine: Annotated[str, typer.Option(help="vllm, transformers, or synthetic (no model).")] = DEFAULT.engine,
    model: Annotated[
        str | None, typer.Option(help="Directory or Hugging Face id; default: the bundled target.")
    ] = None,
    bind: Annotated[str, typer.Option(help="Address to listen on; several separated by commas.")] = DEFAULT.bind,
    keys: Annotated[
        str | None, typer.Option(metavar="DIR", help="Let in only whose key is there: see `testbed keys`.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen beyond loopback without keys.")] = False,
    max_sessions: Annotated[int, typer.Option(help="Sessions of all UEs.")] = DEFAULT.max_sessions,
    max_sessions_per_ue: Annotated[int, typer.Option(help="Sessions of one UE.")] = DEFAULT.max_sessions_per_ue,
    max_pending: Annotated[int, typer.Option(help="Windows that may wait for the engine.")] = DEFAULT.max_pending,
    max_window: Annotated[int, typer.Option(help="Tokens of a draft window.")] = DEFAULT.max_window,
    max_kv_tokens: Annotated[
        int | None, typer.Option(help="Tokens of all open sessions; default: four times the engine's room.")
    ] = None,
    idle_s: Annotated[float, typer.Option(help="Seconds after which a silent session is forgotten.")] = DEFAULT.idle_s,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = DEFAULT.dtype,
    max_model_len: Annotated[int | None, typer.Option(help="Positions of one sequence.")] = None,
    scheduler: Annotated[
        str, typer.Option(help="fcfs (first come, first served) or slo (keeps token-speed promises).")
    ] = DEFAULT.scheduler,
    max_batch: Annotated[int, typer.Option(help="Requests of one engine pass.")] = DEFAULT.max_batch,
    max_batch_tokens: Annotated[int, typer.Option(help="New tokens of one engine pass.")] = DEFAULT.max_batch_tokens,
    tensor_parallel: Annotated[int, typer.Option(help="GPUs that share the model (vLLM).")] = DEFAULT.tensor_parallel,
    memory_share: Annotated[float, typer.Option(help="Share of GPU memory for vLLM.")] = DEFAULT.memory_share,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the engine.")] = None,
    prefix_cache: Annotated[
        bool, typer.Option(help="Whether vLLM reads committed prefixes from its cache, or computes them every round.")
    ] = DEFAULT.prefix_cache,
    head: Annotated[
        str | None, typer.Option(help="Decision head: its directory, or bundled; default: the bundled one, if needed.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(help="strict, digits, head, table or budget; default: head where one is given, else strict."),
    ] = None,
    quality_budget: Annotated[
        float | None, typer.Option(help="Share of answers that judge `budget` may let change: 0.01.")
    ] = None,
    coefficients: Annotated[
        str | None,
        typer.Option(
            help="What slo expects of passes: a profile, FILE.json of `estimator fit`, or probe: measure some."
        ),
    ] = None,
    admission: Annotated[
        bool, typer.Option(help="Whether slo refuses sessions whose speed it cannot promise.")
    ] = DEFAULT.admission,
    chunk_tokens: Annotated[
        int | None, typer.Option(help="New tokens of a prompt that a pass of fcfs takes; slo goes by deadlines.")
    ] = None,
    pace: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE|FILE.json",
            help="Be as slow as another machine: passes last as long as its coefficients say, or longer.",
        ),
    ] = None,
    window_controller: Annotated[
        str | None,
        typer.Option(help="Hint UEs of `ue run --window-rule hinted` how much to draft: on, or max_window=8,…"),
    ] = None,
    metrics: Annotated[str | None, typer.Option(metavar="FILE", help="Write counters here, as JSON lines.")] = None,
    metrics_interval_s: Annotated[float, typer.Option(help="Seconds between them.")] = DEFAULT.metrics_interval_s,
    power: Annotated[
        str, typer.Option(metavar="SOURCE", help="Count energy in the metrics: auto, none, nvml, rapl, or nvml,rapl.")
    ] = "none",
    monitor: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve a live view for browsers there, and /metrics, /healthz, /readyz; on loopback, or with a token.",
        ),
    ] = None,
    monitor_token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with the token that viewers must give.")
    ] = None,
    monitor_text: Annotated[
        bool,
        typer.Option(
            "--monitor-text", help="Show viewers what UEs are answered. Else they see counts and times alone."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready as one JSON line.")] = False,
) -> None:
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

    if engine != "synthetic" and model is None:
        model = str(bundled().require("target"))
    kind = judge_kind(judge, head, quality_budget)
    config = ServeConfig(
        engine=engine,
        model=model,
        bind=bind,
        keys=keys,
        insecure=insecure,
        max_sessions=max_sessions,
        max_sessions_per_ue=max_sessions_per_ue,
        max_pending=max_pending,
        max_window=max_window,
        max_kv_tokens=max_kv_tokens,
        idle_s=idle_s,
        dtype=dtype,
        max_model_len=max_model_len,
        scheduler=scheduler,
        max_batch=max_batch,
        max_batch_tokens=max_batch_tokens,
        tensor_parallel=tensor_parallel,
        memory_share=memory_share,
        threads=threads,
        prefix_cache=prefix_cache,
        judge=kind,
        head=str(head_directory(head)) if kind in WITH_HEAD else None,
        quality_budget=quality_budget,
        coefficients=coefficients,
        admission=admission,
        chunk_tokens=chunk_tokens,
        pace=pace,
        window_controller=window_controller,
        metrics=metrics,
        metrics_interval_s=metrics_interval_s,
        power=None if power == "none" else power,
        monitor=monitor,
        monitor_token_file=monitor_token_file,
        monitor_text=monitor_text,
    )

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
