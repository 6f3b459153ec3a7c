"""`testbed ue memory`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from testbed.cli.options import AsJson
from testbed.cli.output import print_json


def memory(
    drafter: Annotated[
        str | None, typer.Option(help="GGUF file, by path or name; default: the bundled drafter.", metavar="FILE")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Positions of a sequence: prompt and output. Default: the model's, 8192 at most.")
    ] = None,
    sequences: Annotated[int, typer.Option(help="Concurrent requests.")] = 1,
    kv_type: Annotated[Literal["f16", "f32"], typer.Option(help="The drafter's KV cache.")] = "f16",
    gpu_layers: Annotated[int, typer.Option(help="Layers on a GPU while measuring; -1: all.")] = 0,
    measured: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Load it and draft, or use the file's header alone.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Print the memory that a UE's process takes with a drafter.

    Examples:

        testbed ue memory

        testbed ue memory --drafter qwen-0.5b-q8.gguf --context 1024

        testbed ue memory --drafter llama-1b-q8.gguf --no-measure --json
    """
    from testbed.experiments.inputs.pair import drafter_for
    from testbed.experiments.runs.ue_memory import measure
    from testbed.llama.context import LlamaOptions
    from testbed.llama.memory import expected

    path = drafter_for(drafter)
    options = LlamaOptions(context=context, sequences=sequences, gpu_layers=gpu_layers, kv_type=kv_type)
    parts = expected(path, options)
    found = measure(path, options) if measured else None
    if as_json:
        sizes = {**parts._asdict(), "expected_bytes": parts.total_bytes, "base_bytes": None, "peak_bytes": None}
        print_json({"drafter": str(path), **sizes, **(found._asdict() if found else {})})
        return
    _show(parts, found)


def _show(parts: Any, found: Any) -> None:
    """Sizes for people; `found` is None where nothing was measured."""
    rows = {"weights": parts.weights_bytes, "weights in another order": parts.copied_bytes}
    rows |= {"KV cache": parts.kv_bytes, "compute, at most": parts.compute_bytes}
    if found:
        rows |= {"process before": found.base_bytes, "expected in all": found.base_bytes + parts.total_bytes}
        rows |= {"measured peak": found.peak_bytes}
    else:
        rows |= {"in all, process not counted": parts.total_bytes}
    for name, size_bytes in rows.items():
        print(f"{name:28} {size_bytes / 1e6:8.1f} MB")
