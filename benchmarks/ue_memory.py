"""Memory of a UE process by drafter: estimate from the GGUF header, and measurement.

Drafters are the bundled one and random weights in the shapes of public models, written to a temporary folder one at a
time (0.5 to 2 GB each). Each is loaded in a separate process, which computes a full batch and drafts.

Run: python benchmarks/ue_memory.py [--shapes qwen2.5-0.5b,llama-3.2-1b] [--dtype q8_0] [--context 1024] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from testbed.experiments.results import directory as results
from testbed.experiments.runs.ue_memory import measure
from testbed.llama.context import LlamaOptions
from testbed.llama.memory import expected
from testbed.models.bundle import bundled
from testbed.models.random_gguf import KINDS, SHAPES, write_random


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes", default="qwen2.5-0.5b", help=f"some of {', '.join(SHAPES)}; empty: only the bundled drafter"
    )
    parser.add_argument("--dtype", default="q8_0", choices=KINDS)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    options = LlamaOptions(context=arguments.context, sequences=1, gpu_layers=0)
    rows = [row("bundled", bundled().require("drafter"), options)]
    for name in filter(None, arguments.shapes.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / f"{name}.gguf"
            write_random(path, SHAPES[name], arguments.dtype)
            rows.append(row(f"{name} {arguments.dtype}", path, options))
    if arguments.json:
        print(json.dumps({"host": results.host(), "context": arguments.context, "rows": rows}))
        return
    print(f"one sequence of {arguments.context} positions, f16 cache, on the CPU; MB")
    heads = ("weights", "copies", "cache", "compute", "process", "expected", "measured")
    print(f"{'drafter':22}" + "".join(f"{head:>9}" for head in heads))
    for each in rows:
        keys = ("weights", "copied", "kv", "compute", "base", "expected", "peak")
        print(f"{each['drafter']:22}" + "".join(f"{each[f'{key}_bytes'] / 1e6:9.1f}" for key in keys))


def row(name: str, path: Path, options: LlamaOptions) -> dict[str, Any]:
    """Expected and measured memory of one drafter."""
    parts, found = expected(path, options), measure(path, options)
    in_all = found.base_bytes + parts.total_bytes
    return {"drafter": name, **parts._asdict(), **found._asdict(), "expected_bytes": in_all}


if __name__ == "__main__":
    main()
