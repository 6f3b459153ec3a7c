"""`testbed bs`: the edge server."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.output import claim_stdout, note, print_json
from testbed.config import ServeConfig

if TYPE_CHECKING:
    from testbed.bs.desk import Offer

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
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = DEFAULT.dtype,
    max_model_len: Annotated[int | None, typer.Option(help="Positions of one sequence.")] = None,
    scheduler: Annotated[str, typer.Option(help="fcfs")] = DEFAULT.scheduler,
    max_batch: Annotated[int, typer.Option(help="Requests of one engine pass.")] = DEFAULT.max_batch,
    max_batch_tokens: Annotated[int, typer.Option(help="New tokens of one engine pass.")] = DEFAULT.max_batch_tokens,
    tensor_parallel: Annotated[int, typer.Option(help="GPUs that share the model (vLLM).")] = DEFAULT.tensor_parallel,
    memory_share: Annotated[float, typer.Option(help="Share of GPU memory for vLLM.")] = DEFAULT.memory_share,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the engine.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say that it is ready as one JSON line.")] = False,
) -> None:
    """Serve verification until Ctrl-C.

    Examples:

        testbed bs serve

        testbed bs serve --engine vllm --model Qwen/Qwen2.5-7B-Instruct --dtype bfloat16 --bind tcp://0.0.0.0:5555
    """
    from testbed.bs.serve import serve as run
    from testbed.models.bundle import bundled

    if engine != "synthetic" and model is None:
        model = str(bundled().require("target"))
    config = ServeConfig(
        engine=engine,
        model=model,
        bind=bind,
        dtype=dtype,
        max_model_len=max_model_len,
        scheduler=scheduler,
        max_batch=max_batch,
        max_batch_tokens=max_batch_tokens,
        tensor_parallel=tensor_parallel,
        memory_share=memory_share,
        threads=threads,
    )

    stdout = claim_stdout() if as_json else sys.stdout

    def ready(addresses: list[str], offer: Offer) -> None:
        if as_json:
            document = {"ready": True, "bind": ",".join(addresses), "pid": os.getpid(), "model": offer.model}
            print_json(document, stdout)
        note(f"serving {offer.model} on {', '.join(addresses)} (pid {os.getpid()}); Ctrl-C stops it")

    run(config, ready)
