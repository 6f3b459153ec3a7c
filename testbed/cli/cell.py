"""`testbed cell`: many UEs, one radio, one base station."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from testbed.cli.options import AsJson, Force, configured, refuse_to_overwrite
from testbed.cli.output import note, print_json, progress
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand, print_rows
from testbed.errors import BadInput
from testbed.experiments.lockstep.drafts import DraftsConfig
from testbed.options import Config, resolved

if TYPE_CHECKING:
    from testbed.experiments.cell.grid.sustain import SustainConfig

SUSTAINED = {
    "ues": ("UEs", "{:g}"),
    "ues_mean": ("mean", "{:.1f}"),
    "ues_low": ("low", "{:.1f}"),
    "ues_high": ("high", "{:.1f}"),
    "difference": ("difference", "{:+.1f}"),
    "difference_low": ("from", "{:+.1f}"),
    "difference_high": ("to", "{:+.1f}"),
    "verdict": ("verdict", "{}"),
    "kept": ("kept", "{:.2f}"),
    "bound_by": ("bound by", "{}"),
    "uplink_utilisation": ("uplink", "{:.2f}"),
    "busy_share": ("verifier", "{:.2f}"),
    "goodput_tps": ("goodput tok/s", "{:.1f}"),
}
"""Columns of `cell sustain`, after those of the varied fields."""
SWEPT = {
    "group": ("group", "{}"),
    "goodput_tps": ("goodput tok/s", "{:.1f}"),
    "goodput_tps_low": ("from", "{:.1f}"),
    "goodput_tps_high": ("to", "{:.1f}"),
    "difference": ("difference", "{:+.1f}"),
    "verdict": ("verdict", "{}"),
    "latency_s": ("latency s", "{:.2f}"),
    "violations": ("violated", "{:.3f}"),
    "message_delay_s": ("delay s", "{:.4f}"),
    "window": ("K", "{:.1f}"),
    "csi_error_db": ("CSI error dB", "{:.2f}"),
    "uplink_utilisation": ("uplink", "{:.2f}"),
    "busy_share": ("verifier", "{:.2f}"),
    "bound_by": ("bound by", "{}"),
    "handovers_per_ue": ("handovers/UE", "{:.2f}"),
    "interruption_s": ("interruption s", "{:.3f}"),
    "prefilled_again": ("prefilled again", "{:.0f}"),
}
"""Columns of `cell sweep`, likewise."""
Vary = Annotated[
    list[str] | None,
    typer.Option(
        help="FIELD=VALUE,VALUE: radio.bandwidth_hz=5e6,20e6, ues.NAME.protocol=fh,sh, ues.*.prompt=[50,50],[500,500]."
    ),
]

_VALUES = re.compile(r'\[[^\]]+\]|"[^"]*"|[^,]+')

app = CommandGroup(no_args_is_help=True, help="Many UEs that share one radio cell and one base station.")


@app.command(cls=TableCommand)
def run(
    file: Annotated[Path, typer.Argument(help="Configuration of the cell, see docs/guides/cell.md.")],
    seed: Annotated[int | None, typer.Option(help="Seed of the random numbers. Default: the file's.", min=0)] = None,
    seconds: Annotated[float | None, typer.Option(help="Duration, warm-up included. Default: the file's.")] = None,
    real: Annotated[bool, typer.Option("--real", help="Processes, sockets and a relay, in real time.")] = False,
    executor: Annotated[
        str, typer.Option(help="Several cells: local: processes of this machine. ray: a Ray cluster.")
    ] = "local",
    workers: Annotated[int, typer.Option(help="Several cells: processes of the base stations.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Directory for the configuration and the results.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a cell in virtual time or with processes, and print a row for each group of UEs.

    Examples:

        testbed cell run sweeps/cell/fh.yaml

        testbed cell run sweeps/cell/fh.yaml --seconds 60 --seed 1 --out runs/cell

        testbed cell run sweeps/cell/hexagon.yaml --executor ray --workers 2
    """
    from testbed.experiments.cell.config import CellConfig
    from testbed.experiments.cell.files import carry_out
    from testbed.experiments.cell.several.workers import Spread
    from testbed.options import load, replaced

    given = {name: value for name, value in (("seed", seed), ("seconds", seconds)) if value is not None}
    config = replaced(load(CellConfig, file, pipes=True), given)
    with progress("seconds") as bar:
        spread = Spread(executor, workers)
        found = carry_out(config, real, out, lambda passed_s, all_s: bar(int(passed_s), math.ceil(all_s)), spread)
    if out is not None:
        note(f"wrote {out / 'cell.json'} and {out / 'report.html'}")
    (print_json if as_json else _print)(found)


@app.command()
@configured(DraftsConfig)
def drafts(
    config: DraftsConfig,
    out: Annotated[Path, typer.Option(help="File to write, .msgpack.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Record what a drafter drafts after every prefix of the target's outputs, for `drafts` of a cell's groups.

    Examples:

        testbed cell drafts --prompts 100 --depth 8 --out drafts.msgpack

        testbed cell drafts --engine llama --model smollm2 --drafter smollm2 --prompts 50 --out smollm2.msgpack
    """
    from testbed.experiments.lockstep.drafts import record

    refuse_to_overwrite([out], force)
    with progress("recording") as told:
        made = record(config, told)
    made.save(out)
    drafted = sum(len(one.output) for one in made.prompts)
    agreed = sum(token[0] == own for one in made.prompts for token, own in zip(one.drafted, one.output, strict=True))
    row = {
        "file": str(out), "prompts": len(made.prompts), "tokens": drafted, "agree": agreed / drafted,
        "depth": made.depth,
    }  # fmt: skip
    if as_json:
        print_json(row)
    else:
        print(f"{row['prompts']} prompts, {drafted} tokens, of which {row['agree']:.1%} are the drafter's too")
        note(f"wrote {out}")


@app.command(cls=TableCommand)
def sustain(
    file: Annotated[Path, typer.Argument(help="Configuration of the cell.")],
    vary: Vary = None,
    ues: Annotated[
        str | None, typer.Option(help="Numbers of UEs to run: 5,10,20. Default: search for the largest.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Seeds of each point.", min=1)] = 5,
    epsilon: Annotated[float, typer.Option(help="Share of late responses that a class tolerates.")] = 0.05,
    resolution: Annotated[
        float, typer.Option(help="Last step of a search, as a share of the UEs, at least one UE; 0: always one.")
    ] = 0.02,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Directory for runs, rows and a plot; resumes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find how many UEs a cell sustains, and what binds it: radio, drafting or verification.

    Examples:

        testbed cell sustain sweeps/cell/umi.yaml --vary radio.bandwidth_hz=5e6,10e6,20e6,100e6 --out runs/sustain

        testbed cell sustain sweeps/cell/umi.yaml --vary radio.bandwidth_hz=5e6,20e6 --ues 8,16,32,64 --repeats 3
    """
    from testbed.experiments.cell.config import CellConfig
    from testbed.experiments.cell.grid.sustain import SustainConfig
    from testbed.options import load

    config = SustainConfig(
        cell=load(CellConfig, file, pipes=True), vary=_varied(vary or []), ues=_numbers(ues), repeats=repeats,
        epsilon=epsilon, resolution=resolution,
    )  # fmt: skip
    rows = _sustained(config, workers, out)
    if as_json:
        print_json({"schema": 1, "config": resolved(config), "rows": rows})
    else:
        print_rows(rows, "UEs of a cell", {name: (name.split(".", 1)[-1], "{}") for name in config.vary} | SUSTAINED)


@app.command(cls=TableCommand)
def sweep(
    file: Annotated[Path, typer.Argument(help="Configuration of the cell.")],
    vary: Vary = None,
    repeats: Annotated[int, typer.Option(help="Seeds of each combination.", min=1)] = 3,
    executor: Annotated[
        str, typer.Option(help="local: combinations on processes of this machine. ray: the base stations of each run.")
    ] = "local",
    workers: Annotated[int, typer.Option(help="Processes, of this machine or of the Ray cluster.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Directory for runs, rows and a plot; resumes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a cell with every combination of values of its fields, and print a row for each of them and each group.

    Examples:

        testbed cell sweep sweeps/cell/fh.yaml --vary radio.scheduler=round-robin,weights,edf --out runs/schedulers

        testbed cell sweep sweeps/cell/umi.yaml --vary 'ues.*.csi=none,oracle,handshake,"report,noise_db=2"'

        testbed cell sweep sweeps/cell/hexagon.yaml --executor ray --workers 2 --out runs/hexagon
    """
    from testbed.experiments.cell.config import CellConfig
    from testbed.experiments.cell.grid.sweep import CellSweepConfig, sweep_cell
    from testbed.experiments.cell.several.workers import Spread
    from testbed.experiments.plots.cell import write_sweep
    from testbed.options import load

    config = CellSweepConfig(cell=load(CellConfig, file, pipes=True), vary=_varied(vary or []), repeats=repeats)
    points, spread = (workers, Spread()) if executor == "local" else (1, Spread(executor, workers))
    rows = _kept(
        config, out, "sweep",
        lambda runs: sweep_cell(config, runs, points, _told, spread),
        lambda rows, folder: write_sweep(rows, list(config.vary), folder / "sweep.png"),
    )  # fmt: skip
    if as_json:
        print_json({"schema": 1, "config": resolved(config), "rows": rows})
    else:
        print_rows(rows, "groups of UEs", {name: (name.split(".", 1)[-1], "{}") for name in config.vary} | SWEPT)


def _told(done: int, total: int) -> None:
    note(f"{done} of {total} points")


def _kept(
    config: Config,
    out: Path | None,
    what: str,
    rows_of: Callable[[Path | None], list[dict[str, Any]]],
    plot: Callable[[list[dict[str, Any]], Path], object],
) -> list[dict[str, Any]]:
    """Rows of a search or sweep, written with a plot into `out`."""
    from testbed.experiments.results.claims import claimed
    from testbed.files import whole_file

    if out is None:
        return rows_of(None)
    with claimed(config, out, what):
        rows = rows_of(out / "runs")
        with whole_file(out / "rows.json") as part:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1))
        plot(rows, out)
    note(f"wrote {out}")
    return rows


def _sustained(config: SustainConfig, workers: int, out: Path | None) -> list[dict[str, Any]]:
    """Rows of a search, written with a plot into `out`."""
    from testbed.experiments.cell.grid.sustain import sustain as search
    from testbed.experiments.plots.cell import write_plot

    return _kept(
        config, out, "search",
        lambda runs: search(config, runs, workers, _told),
        lambda rows, folder: write_plot(rows, list(config.vary), folder / "sustain.png"),
    )  # fmt: skip


def _varied(given: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals or not values or name in found:
            raise BadInput(f"--vary takes each FIELD once, as FIELD=VALUE,VALUE, not {text!r}")
        found[name] = tuple(map(_value, _VALUES.findall(values)))
    return found


def _value(text: str) -> Any:
    """A list or a quoted text as in YAML, a number if the text is one."""
    if text[0] == "[" and text[-1] == "]":
        return [_value(part.strip()) for part in text[1:-1].split(",")]
    if text[0] == '"' and text[-1] == '"' and len(text) > 1:
        return text[1:-1]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in (text or "").split(",") if part)
    except ValueError as exc:
        raise BadInput(f"--ues takes whole numbers separated by commas, not {text!r}") from exc


def _print(found: Mapping[str, Any]) -> None:
    from testbed.experiments.results.cell_columns import CELL_COLUMNS, STATION_COLUMNS, cell_line, flat_row

    print_rows([flat_row(row) for row in found["rows"]], "groups of UEs", CELL_COLUMNS)
    if "cells" in found:
        print_rows(found["cells"], "cells", STATION_COLUMNS)
    print(cell_line(found["cell"]))
