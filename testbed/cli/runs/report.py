"""`testbed report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.options import AsJson
from testbed.cli.output import CATEGORY_COLUMNS, grid_columns, note, print_json
from testbed.cli.tables import print_rows

if TYPE_CHECKING:
    from testbed.experiments.report.data import Shown


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Directories of runs, sweeps (finished or not), studies, cells, benchmarks.")
    ],
    out: Annotated[Path | None, typer.Option(help="Output directory; default: the first run directory.")] = None,
    formats: Annotated[str, typer.Option(help="Formats of the files in plots/: png, svg, pdf.")] = "png,svg,pdf",
    against: Annotated[
        str | None,
        typer.Option(help="Series or method that speed-up and accuracy lost compare with. Default: the first."),
    ] = None,
    export: Annotated[
        str | None, typer.Option(help="Also write the metrics in the format of guidellm, aiperf or ianvs, in exports/.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write tables and plots of runs and sweeps: one self-contained HTML file, plots/, and LaTeX and CSV in tables/.

    With several runs, later ones are compared with the first, prompt by prompt where they decoded the same prompts.

    Examples:

        testbed report runs/demo-20260101-120000

        testbed report runs/wisv-table1 --out table1

        testbed report runs/wisv-csi --against "blind head, reports"

        testbed report runs/demo-20260101-120000 --export guidellm

        testbed report runs/near runs/far --out compared --formats pdf
    """
    from testbed.experiments.report.data import readable

    wanted = [part.strip() for part in formats.split(",") if part.strip()]
    shown, paths = _written(runs, out or runs[0], wanted, against, export)
    if as_json:
        documents = [{"run": str(one.path), **one.document} for one in shown]
        print_json({"report": str(paths[0]), "exports": list(map(str, paths[1:])), "runs": documents})
        return
    with readable(runs):
        _print_rows(shown)
    for path in paths:
        note(f"wrote {path}")


def _written(
    runs: Sequence[Path], directory: Path, formats: Sequence[str], against: str | None, export: str | None
) -> tuple[list[Shown], list[Path]]:
    """What is shown, and the files written: the page, and those of the export."""
    from testbed.experiments.exports.write import check_export, write_exports
    from testbed.experiments.report.data import readable
    from testbed.experiments.report.page import write_shown
    from testbed.experiments.sweep.report import load_all

    if export is not None:
        check_export(export)
    with readable(runs):
        shown = load_all(runs)
        page = write_shown(shown, directory, formats, against)
        return shown, [page, *([] if export is None else write_exports(shown, directory, export))]


def _print_rows(shown: Sequence[Shown]) -> None:
    from testbed.experiments.results.traffic import by_meaning

    for one in shown:
        if one.speculates:
            rows = list(map(by_meaning, one.rows))
            print_rows(rows, str(one.path), grid_columns(rows))
            if parts := [by_meaning(part.row) for part in one.categories]:
                print_rows(parts, f"{one.path}, by category", CATEGORY_COLUMNS)
