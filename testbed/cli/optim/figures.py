"""`testbed optim figures`: Figs. 6–9 of edge SD batching from a sweep file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from testbed.cli.options import AsJson
from testbed.cli.output import note, print_json, progress
from testbed.cli.tables import print_table


def figures(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Sweep file, such as sweeps/edge/fig8.yaml.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New directory for tables and plots.")],
    seeds: Annotated[int | None, typer.Option(help="Draws of every value; default: the file's, 20.")] = None,
    draws: Annotated[int | None, typer.Option(help="Draws of every quoted point; default: the file's, 200.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute a figure of edge SD batching: means with 95 % intervals, and the reductions that the text quotes.

    Writes points.csv (means), draws.csv (every draw), quoted.csv, summary.json, config.yaml and the plot.

    Examples:

        testbed optim figures sweeps/edge/fig7.yaml --out runs/fig7

        testbed optim figures sweeps/edge/fig8.yaml --out runs/fig8-quick --seeds 3 --draws 10

        testbed optim figures sweeps/edge/readings.yaml --out runs/readings --json
    """
    import msgspec

    from testbed.experiments.edge.figures import load_figures, run_figures

    config = load_figures(file)
    changed = {name: value for name, value in (("seeds", seeds), ("draws", draws)) if value is not None}
    config = msgspec.structs.replace(config, **changed)
    with progress(config.name, config.jobs) as told:
        document = run_figures(config, out, told)
    note(f"wrote {out}")
    if as_json:
        print_json(document)
        return
    _show(document)


def _show(document: Mapping[str, Any]) -> None:
    if document["points"]:
        table = Table()
        for header in ("panel", "x", "line", "mean s", "95 %"):
            table.add_column(header, justify="left" if header in ("panel", "line") else "right", no_wrap=True)
        for row in document["points"]:
            interval = f"{row['low_s']:.2f} … {row['high_s']:.2f}"
            table.add_row(row["panel"], f"{row['x']:g}", row["line"], f"{row['mean_s']:.2f}", interval)
        print_table(table)
    for row in document["quoted"]:
        said = "inside" if row["inside"] else "not inside"
        if row["median_percent"] is None:
            print(f"{row['figure']} ({row['reading']}): {row['draws']} draws are too few for a median")
            continue
        print(
            f"{row['figure']} ({row['reading']}): median {row['median_percent']:.1f} % "
            f"({row['median_low_percent']:.1f} … {row['median_high_percent']:.1f}), 95 % of {row['draws']} draws "
            f"{row['low_percent']:.1f} … {row['high_percent']:.1f}; the paper's {row['paper_percent']} % is {said}; "
            f"best baseline {row['best']}"
        )
