"""Command lines of benchmarks whose systems are processes of their own."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.workers import answer

Load = Callable[..., tuple[Any, Callable[..., Any]]]


def command_line(about: str | None) -> argparse.ArgumentParser:
    """A parser with `--json` and `--csv`; `about` is the benchmark's docstring."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--csv", type=Path, help="file of rows")
    return parser


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows under a header. Elements of lists are columns of their own: `x`, `x_low` and `x_high` of a value with
    its interval, the last two of an interval alone.
    """
    from testbed.experiments.results.csv_file import write_csv

    ends = {2: ("_low", "_high"), 3: ("", "_low", "_high")}
    flat = [
        {
            f"{name}{end}": part
            for name, value in row.items()
            for end, part in (zip(ends[len(value)], value, strict=True) if isinstance(value, list) else [("", value)])
        }
        for row in rows
    ]
    write_csv(path, flat)


def with_engine(about: str | None) -> argparse.ArgumentParser:
    """The same, with the engine and its target."""
    parser = command_line(about)
    parser.add_argument("--engine", default="vllm", choices=("vllm", "llama", "transformers"))
    parser.add_argument("--model", help="target by path or name; default: the bundled one")
    return parser


def measure(
    load: Load,
    parse: Callable[[Sequence[str]], argparse.Namespace],
    run: Callable[[argparse.Namespace], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> int:
    """A worker that loads a system, or the benchmark itself: measure all systems in turn and print the document."""
    if sys.argv[1:] == ["--worker"]:
        answer(load)
        return 0
    options = parse(sys.argv[1:])
    document = run(options)
    if options.csv is not None:
        write_rows(options.csv, document["rows"] + document.get("generate", []))
    if options.json:
        print(json.dumps(document))
    else:
        show(document)
    return 0


def threads_of_a_server() -> None:
    """As many threads as `bs serve` uses, unless the environment says otherwise."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) - 1)))
