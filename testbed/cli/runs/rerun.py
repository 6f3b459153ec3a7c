"""`testbed rerun`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from testbed.cli.options import AsJson
from testbed.cli.output import note, print_json
from testbed.cli.tables import print_table

MOST_ROWS = 60
"""Rows of the printed table; the JSON document has all."""


def rerun(
    run: Annotated[Path, typer.Argument(help="Directory of a demo, a `ue run`, a sweep or one of its points.")],
    out: Annotated[Path | None, typer.Option(help="Run directory. Default: runs/rerun-TIME.")] = None,
    own_scorer: Annotated[
        bool, typer.Option("--own-scorer", help="Run the scorer that the directory names also if it is code.")
    ] = False,
    as_configured: Annotated[
        bool,
        typer.Option(
            "--as-configured",
            help="Let models and data sets of the hub be downloaded, and a `ue run` contact base stations on other "
            "machines and read a data set that is not bundled.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Repeat the run of a directory and compare outputs, token by token, and rows, column by column.

    In virtual time nothing differs. In real time tokens repeat, unless a judge that keeps tokens sees a measured link;
    durations do not, nor do the bytes of what is chosen by them.

    Examples:

        testbed rerun runs/demo-20260101-120000

        testbed rerun runs/wisv-table1/points/009917ccdb57 --out runs/again --json
    """
    from testbed.experiments.sweep.rerun import rerun as run_again

    directory = out or Path("runs") / f"rerun-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    document = run_again(run, directory, note, own_scorer, as_configured)
    if as_json:
        print_json(document)
        return
    _print(document)
    note(f"wrote {directory}")


def _print(document: dict[str, Any]) -> None:
    outputs, differences = document["outputs"], document["differences"]
    print(f"outputs: {outputs['compared']} compared, {len(outputs['different'])} differ")
    for name, rows in (("missing", document["missing"]), ("more", document["more"])):
        if rows:
            print(f"rows {name}: {', '.join(rows)}")
    if not differences:
        print("rows: the same in every column")
        return
    table = Table("row", "column", "before", "after", "change", title="rows", title_justify="left")
    for entry in differences[:MOST_ROWS]:
        change = "" if entry["change"] is None else f"{entry['change']:+.2%}"
        table.add_row(entry["row"], entry["column"], _cell(entry["before"]), _cell(entry["after"]), change)
    print_table(table)
    if len(differences) > MOST_ROWS:
        print(f"and {len(differences) - MOST_ROWS} more; --json has them all")


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
