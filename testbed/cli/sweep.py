"""`testbed sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from testbed.cli.output import GRID_COLUMNS, note, print_json, print_rows


def sweep(
    file: Annotated[Path, typer.Argument(help="YAML: run (as for `demo`) and grid.")],
    out: Annotated[Path | None, typer.Option(help="Directory; default: runs/NAME. The same one again resumes.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the file and list its points; run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Run every combination of a grid; a run that was stopped goes on where it stopped.

    Example file:

        {name: rates, run: {channel: "kind=virtual,profile=wisv,rtt_ms=50", methods: [greedy, fh], prompts: 50},
        grid: {window: [8, 16], rate_mbps: [20, 500]}}

    Examples:

        testbed sweep rates.yaml

        testbed sweep rates.yaml --out runs/rates-2 --json
    """
    from testbed.experiments.sweep import load_sweep, points, run_sweep

    config = load_sweep(file)
    if check:
        found = points(config)
        if as_json:
            print_json({"points": [{"key": p.key, **p.values} for p in found]})
        else:
            for point in found:
                print(point.key, ", ".join(f"{k}={v}" for k, v in point.values.items()))
        return
    directory = out or Path("runs") / config.name
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
    with bar:
        task = bar.add_task(config.name, total=None)

        def told(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)

        document = run_sweep(config, directory, told)
    if as_json:
        print_json(document)
        return
    print_rows(document["rows"], f"{config.name}: {len(document['rows'])} rows", GRID_COLUMNS)
    note(f"wrote {directory}")
