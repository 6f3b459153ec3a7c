"""`testbed power`: what a device draws."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import AsJson
from testbed.cli.output import ENERGY_COLUMNS, note, note_power, print_json
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand, print_rows

app = CommandGroup(no_args_is_help=True, help="Power and temperature: read sensors, and compute the energy of a run.")


@app.callback()
def group() -> None:
    """Power and temperature: read sensors, and compute the energy of a run."""


@app.command()
def read(
    source: Annotated[
        str, typer.Option(help="auto, jetson, tegrastats, pi, rapl, nvml, several with commas, or FILE of samples.")
    ] = "auto",
    seconds: Annotated[float, typer.Option("--for", help="Seconds over which to read.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Read this machine's mean power by rail, temperature and throttling.

    Examples:

        testbed power read

        testbed power read --source rapl --for 5 --json
    """
    from testbed.experiments.power.read import read_power

    found = read_power(source, seconds)
    if as_json:
        print_json(found)
        return
    for rail, power_w in found["rails"].items():
        print(f"{rail:>20}  {power_w:8.3f} W")
    print(f"{'total':>20}  {found['total_w']:8.3f} W  ({found['total']})")
    heat = "temperature not known" if found["temp_c"] is None else f"{found['temp_c']:.1f} °C"
    slow = {None: "throttling not known", "": "not throttled"}.get(
        found["throttled"], f"throttled: {found['throttled']}"
    )
    note(f"{found['source']}: {found['samples']} samples in {found['seconds']:.2f} s, {heat}, {slow}")
    note_power(found)


@app.command(cls=TableCommand)
def account(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory that `ue run` wrote.")],
    samples: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Samples of a meter: CSV, parquet, or a log of tegrastats.")
    ] = None,
    offset_s: Annotated[
        float | None, typer.Option(help="Added to the samples' times, to make them Unix times of the UE.")
    ] = None,
    align: Annotated[bool, typer.Option("--align", help="The first sample is at the run's first round.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compute a run's energy from a meter's samples, or again from its own, and rewrite its files.

    Examples:

        testbed power account runs/far --samples meter.csv

        testbed power account runs/far --samples meter.csv --offset-s -3600 --json

        testbed power account runs/far
    """
    from testbed.experiments.power.account import account_run

    found = account_run(run_dir, samples, offset_s, align)
    if as_json:
        print_json(found)
        return
    print_rows(found["rows"], None, ENERGY_COLUMNS)
    note(f"wrote rounds.parquet, power.parquet and summary.json of {run_dir}")
    note_power(found["power"])
