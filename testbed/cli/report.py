"""`testbed report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.output import note, print_json, print_rows


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; default: the first run directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Tables and plots of run directories, and one self-contained HTML file.

    Examples:

        testbed report runs/demo-20260101-120000

        testbed report runs/near runs/far --out compared
    """
    from testbed.experiments.report import write_report
    from testbed.experiments.results import read_summary

    documents = {run: read_summary(run) for run in runs}
    directory = out or runs[0]
    page = write_report(runs, directory)
    if as_json:
        print_json({"report": str(page), "runs": [{"run": str(run), **doc} for run, doc in documents.items()]})
        return
    for run, document in documents.items():
        print_rows(document["rows"], str(run))
    note(f"wrote {page}")
