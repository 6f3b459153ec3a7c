"""`testbed latency limits`, `ratios` and `sizes`: how far the model holds, where speculation wins, and what the
coefficients grow with.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.options import AsJson, numbers
from testbed.cli.output import note, print_json
from testbed.cli.tables import print_rows
from testbed.errors import BadInput

if TYPE_CHECKING:
    from testbed.intervals import Interval
    from testbed.optim.serving.ratios import SpeculationRatios

NUMBER = "{:.6g}"


def limits(
    csv: Annotated[Path, typer.Option(help="pooled.csv of `testbed latency measure`; all.csv for the mean alone.")],
    windows: Annotated[str | None, typer.Option(help="Take rows of these k alone: 1,2,4.")] = None,
    as_json: AsJson = False,
) -> None:
    """Test how far the latency model holds: fit mean, p95 and p99, and report errors by distance from saturation.

    Fits take the loads at which nothing piles up, errors all of them. x = RPS·C2 is the mean's; the model counts as
    holding up to the first range of x in which the median error is above 10 %.

    Examples:

        testbed latency limits --csv runs/load/pooled.csv

        testbed latency limits --csv runs/load/pooled.csv --windows 0
    """
    from testbed.experiments.latency.limits import limits as found_limits

    found = found_limits(csv, windows=None if windows is None else numbers(windows, int, "--windows"))
    if as_json:
        fits = {name: {"r2": each.r2, **dict(zip(each.names, each.values.tolist(), strict=True))}
                for name, each in found.fits.items()}  # fmt: skip
        print_json({"fits": fits, "errors": found.errors, "holds_to": found.holds_to})
        return
    rows = [{"name": name, "r2": each.r2, "to": found.holds_to[name]} for name, each in found.fits.items()]
    columns = {"name": ("statistic", "{}"), "r2": ("R²", "{:.4f}"), "to": ("holds up to x", "{:g}")}
    print_rows(rows, "Fitted below saturation", columns)
    shown = {"from_x": ("x from", "{:g}"), "to_x": ("to", "{:g}"), "loads": ("loads", "{:d}"),
             "piled_up": ("piled up", "{:d}"), "latency_s": ("mean: |error|", "{:.3f}"),
             "latency_p95_s": ("p95", "{:.3f}"), "latency_p99_s": ("p99", "{:.3f}")}  # fmt: skip
    print_rows(found.errors, "Median relative errors", shown)


def note_piled_up(path: Path) -> None:
    """Say how many rows of a table are left out."""
    from testbed.experiments.results.latency import piled_up

    if count := piled_up(path):
        note(f"{path.name}: left out {count} loads at which requests piled up (saturated = 1)")


def ratios(
    csv: Annotated[Path, typer.Option(help="points.csv of `testbed latency measure`, with window 0 among others.")],
    as_json: AsJson = False,
) -> None:
    """Compare speculation with plain decoding at every window and acceptance rate: C1,R, C2,R and break-even load.

    The break-even load is given by the fits of both series (predicted), by six coefficients fitted to all other series
    (forecast), and where the measured curves cross (measured). Intervals are over repeats; where that of a ratio
    contains 1, the loads at which speculation wins are undecided.

    Example:

        testbed latency ratios --csv runs/alpha-k-virtual/points.csv
    """
    from testbed.experiments.results.latency import read_series
    from testbed.optim.serving.ratios import ratios as compared

    note_piled_up(csv)
    rows = [_ratio_row(each) for each in compared(read_series(csv))]
    if as_json:
        print_json({"rows": rows})
        return
    print_rows([_shown(row) for row in rows], None, {name: (name, "{}") for name in _shown(rows[0])})


def _ratio_row(found: SpeculationRatios) -> dict[str, Any]:
    row = found._asdict()
    for name in ("c1_ratio", "c2_ratio", "predicted_rps", "measured_rps"):
        value: Interval | None = row[name]
        row[name] = None if value is None else {"value": value.value, "low": value.ends[0], "high": value.ends[1]}
    return row


def _shown(row: dict[str, Any]) -> dict[str, str | None]:
    def text(value: dict[str, Any] | float | None) -> str | None:
        if value is None or isinstance(value, float):
            return None if value is None else f"{value:.3g}"
        ends = "" if value["low"] is None else f" ({value['low']:.3g} … {value['high']:.3g})"
        return f"{value['value']:.3g}{ends}"

    wins = row["wins"] if row["decided"] else f"{row['wins']}, undecided"
    return {
        "K": str(row["k"]), "α": text(row["imposed"]), "C1,R": text(row["c1_ratio"]), "C2,R": text(row["c2_ratio"]),
        "wins": wins, "predicted": text(row["predicted_rps"]), "forecast": text(row["forecast_rps"]),
        "measured": text(row["measured_rps"]), "loads": f"{row['measured_from']:.3g} … {row['measured_to']:.3g}",
    }  # fmt: skip


def sizes(
    csv: Annotated[
        list[str],
        typer.Option(
            metavar="MILLIONS=FILE",
            help="points.csv by target size in millions; repeat per size.",
        ),
    ],
    plot: Annotated[Path | None, typer.Option(help="Write a plot here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit lines to the model's coefficients over the target's size (Fig. 5 of the review).

    Example:

        testbed latency sizes --csv 3=small/points.csv --csv 12=middle/points.csv --csv 40=large/points.csv
    """
    from testbed.experiments.plots.scaling import by_size, document, plot_sizes
    from testbed.experiments.results.latency import read_points
    from testbed.optim.serving.fit import fit

    for path in _sizes(csv).values():
        note_piled_up(path)
    fits = {size: fit(*read_points(path)) for size, path in _sizes(csv).items()}
    lines = by_size(fits)
    if plot is not None:
        note(f"wrote {plot_sizes(fits, plot)}")
    rows: list[dict[str, Any]] = [
        {"millions": size, "r2": each.r2, **dict(zip(each.names, each.values.tolist(), strict=True))}
        for size, each in fits.items()
    ]
    if as_json:
        print_json({"sizes": rows, "lines": document(lines)})
        return
    cells = {name: (name, "{:.4g}") for name in lines}
    shown = {"millions": ("million parameters", "{:g}"), **cells, "r2": ("R²", "{:.4f}")}
    print_rows(rows, "Coefficients in seconds", shown)
    columns = {"name": ("coefficient", "{}"), "intercept": ("intercept s", NUMBER), "slope": ("s a million", NUMBER),
               "r2": ("R²", "{:.4f}")}  # fmt: skip
    print_rows([{"name": name, **line._asdict()} for name, line in lines.items()], "Lines over size", columns)


def _sizes(given: list[str]) -> dict[float, Path]:
    """Files by millions of parameters.

    Raises:
        BadInput: a size that is no positive number, or is given twice.
    """
    found: dict[float, Path] = {}
    for text in given:
        millions, _, file = text.partition("=")
        try:
            size = float(millions)
        except ValueError as exc:
            raise BadInput(f"--csv takes MILLIONS=FILE, not {text!r}") from exc
        if not 0 < size < 1e9 or not file or size in found:
            raise BadInput(f"--csv takes MILLIONS=FILE, each size once and positive, not {text!r}")
        found[size] = Path(file)
    return found
