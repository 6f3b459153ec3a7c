"""`testbed cell`: many UEs, one radio, one base station."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from testbed.cli.options import AsJson
from testbed.cli.output import note, print_json
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand, print_rows

COLUMNS = {
    "group": ("group", "{}"),
    "ues": ("UEs", "{:d}"),
    "uplink_mbps": ("up Mbit/s", "{:.3f}"),
    "delay_s": ("delay s", "{:.4f}"),
    "delay_p95_s": ("p95 s", "{:.4f}"),
    "goodput_tps": ("goodput tok/s", "{:.1f}"),
    "latency_s": ("latency s", "{:.2f}"),
    "violations": ("violated", "{:.3f}"),
    "drafting_share": ("drafting", "{:.2f}"),
    "radio_share": ("radio", "{:.2f}"),
    "verification_share": ("verifying", "{:.2f}"),
}
"""Columns of the table; the last three are shares of the rounds' time."""

app = CommandGroup(no_args_is_help=True, help="Many UEs that share one radio cell and one base station.")


@app.callback()
def group() -> None:
    """Many UEs that share one radio cell and one base station."""


@app.command(cls=TableCommand)
def run(
    file: Annotated[Path, typer.Argument(help="Configuration of the cell, see docs/guides/cell.md.")],
    seed: Annotated[int | None, typer.Option(help="Seed of the random numbers. Default: the file's.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Duration, warm-up included. Default: the file's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the configuration and the results.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a cell in virtual time, and print a row for each group of UEs.

    Examples:

        testbed cell run sweeps/cell/fh.yaml

        testbed cell run sweeps/cell/fh.yaml --seconds 60 --seed 1 --out runs/cell
    """
    from testbed.experiments.cell.config import CellConfig
    from testbed.experiments.cell.rows import document
    from testbed.experiments.cell.run import run_cell
    from testbed.experiments.results.claims import claimed
    from testbed.files import whole_file
    from testbed.options import load, replaced

    given = {name: value for name, value in (("seed", seed), ("seconds", seconds)) if value is not None}
    config = replaced(load(CellConfig, file), given)
    if out is None:
        found = document(config, run_cell(config))
    else:
        with claimed(config, out, "cell"):
            found = document(config, run_cell(config))
            with whole_file(out / "cell.json") as part:
                part.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
        note(f"wrote {out / 'cell.json'}")
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: Mapping[str, Any]) -> None:
    delays = [row["message_delay_s"] for row in found["rows"]]
    rows = [
        {**row, "delay_s": delay["mean"], "delay_p95_s": delay["p95"] if row["messages"] >= 200 else None}
        for row, delay in zip(found["rows"], delays, strict=True)
    ]
    print_rows(rows, "groups of UEs", COLUMNS)
    cell = found["cell"]
    print(
        f"radio used {cell['uplink_utilisation']:.0%} up, {cell['downlink_utilisation']:.0%} down; verifier busy "
        f"{cell['busy_share']:.0%}; {cell['goodput_tps']:.1f} tokens/s; bound by {cell['bound_by']}"
    )
