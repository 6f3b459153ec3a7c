"""`testbed latency fit`: coefficients of the latency model, from measured latencies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from testbed.cli.latency.limits import NUMBER
from testbed.cli.latency.predict import CONFIDENCE
from testbed.cli.options import AsJson, configured, numbers
from testbed.cli.output import note, print_json
from testbed.cli.tables import print_rows
from testbed.config import Config
from testbed.errors import BadInput
from testbed.optim.serving.points import Points, names
from testbed.options import option


class FitOptions(Config, frozen=True):
    """Configuration of `testbed latency fit`."""

    column: Annotated[str, option("Column to fit, such as latency_p95_s.", panel="Fit")] = "latency_s"
    windows: Annotated[
        tuple[int, ...] | None, option("Use only rows with these k: 1,2,4; 0 for no speculation. Default: all.")
    ] = None
    form: Annotated[
        Literal["load", "speculation"] | None,
        option("Form of the model. Default: speculation if its columns exist and k is not 0."),
    ] = None
    experts: Annotated[str | None, option("Mixture of experts: m,M, with m of M active.")] = None
    by_length: Annotated[bool, option("Fit each prefill and decode length separately, and lines over them.")] = False
    leave_out: Annotated[str, option("Numbers of pairs of lengths to leave out in turn; needs --by-length.")] = ""
    seed: Annotated[int, option("Seed of the choice of folds, if there are too many for all.", least=0)] = 0


@configured(FitOptions)
def fit(
    config: FitOptions,
    csv: Annotated[Path, typer.Option(help="Columns rps,latency_s; for speculation also alpha,k,prefill,decode.")],
    out: Annotated[Path | None, typer.Option(help="Write the fit here, for `predict --fit`.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Write plots into this directory.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit L = C1/(1 − RPS·C2) to measured mean latencies, below saturation.

    With the columns alpha, k, prefill and decode, C1 and C2 become sums of prefill, verification and drafting: six
    coefficients for all rows. With --experts they grow with the share of experts in use. Intervals need the column
    repeat, with two repeats or more.

    Examples:

        testbed latency fit --csv dense.csv

        testbed latency fit --csv speculation.csv --out fit.json --plots plots

        testbed latency fit --csv speculation.csv --windows 1,2,4,8

        testbed latency fit --csv lengths.csv --by-length --leave-out 1,2,4

        testbed latency fit --csv moe.csv --experts 8,128 --json
    """
    from testbed.cli.latency.limits import note_piled_up
    from testbed.experiments.results.latency import read_points, repeats_of

    if not config.leave_out:
        config.refuse_unused(("seed",), "without --leave-out")
    note_piled_up(csv)
    points, latency_s = read_points(csv, config.column, None if config.windows is None else list(config.windows))
    if config.by_length:
        if config.experts or config.form or out:
            raise BadInput("--by-length gives a fit for each length: leave out --experts, --form and --out")
        counts = numbers(config.leave_out, int, "--leave-out") if config.leave_out else []
        _print_lengths(points, latency_s, counts, config.seed, plots, as_json)
        return
    if config.leave_out:
        raise BadInput("--leave-out needs --by-length")
    repeats = repeats_of(csv, None if config.windows is None else list(config.windows))
    _fit_all(config, points, latency_s, repeats, out, plots, as_json)


def _fit_all(
    config: FitOptions, points: Points, latency_s: Any, repeats: Any, out: Path | None, plots: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """One fit of all rows."""
    from testbed.optim.serving.fit import fit as fit_points

    pair = None if config.experts is None else _pair_of_experts(config.experts)
    found = fit_points(points, latency_s, pair, form=config.form, repeats=repeats)
    document = found.document()
    if out is not None:
        _write(out, document)
    if plots is not None:
        from testbed.experiments.plots.latency import write_plots

        for path in write_plots(found, points, latency_s, plots):
            note(f"wrote {path}")
    if as_json:
        print_json(document)
    else:
        _print_fit(document, found.names)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    from testbed.experiments.results.directory import write_text

    write_text(path, json.dumps(document, allow_nan=False) + "\n")
    note(f"wrote {path}")


def _print_fit(document: Mapping[str, Any], wanted: Sequence[str]) -> None:
    spans = document["intervals"] or {}
    rows = []
    for name in wanted:
        low, high = spans.get(name, (None, None))
        rows.append({"name": name, "value": document[name], "low": low, "high": high})
    columns = {"name": ("coefficient", "{}"), "value": ("seconds", NUMBER), "low": (f"{CONFIDENCE}: from", NUMBER),
               "high": ("to", NUMBER)}  # fmt: skip
    print_rows(rows, f"{document['points']} points, R² = {document['r2']:.5f}", columns)


def _print_lengths(
    points: Points, latency_s: Any, counts: list[int], seed: int, plots: Path | None, as_json: bool
) -> None:
    from testbed.optim.serving.lengths import by_lengths

    lengths = by_lengths(points, latency_s)
    if plots is not None:
        from testbed.experiments.plots.scaling import plot_lengths

        note(f"wrote {plot_lengths(lengths, plots / 'lengths.png')}")
    laws = lengths.laws()
    left = [lengths.leave_out(count, seed) for count in counts]
    wanted = names("speculation", None)
    pairs = [
        {"prefill": p, "decode": g, **dict(zip(wanted, each.values.tolist(), strict=True)), "r2": each.r2}
        for (p, g), each in zip(lengths.pairs, lengths.fits, strict=True)
    ]
    if as_json:
        named = {name: law._asdict() for name, law in laws.items()}
        print_json({"pairs": pairs, "laws": named, "left_out": [each._asdict() for each in left]})
        return
    cells = {name: (name, "{:.4g}") for name in ("prefill", "decode", *wanted)}
    print_rows(pairs, "Coefficients in seconds at each length", {**cells, "r2": ("R²", "{:.4f}")})
    columns = {"name": ("coefficient", "{}"), "against": ("against", "{}"), "intercept": ("intercept s", NUMBER),
               "slope": ("s a token", NUMBER), "r2": ("R²", "{:.4f}")}  # fmt: skip
    print_rows([{"name": name, **law._asdict()} for name, law in laws.items()], "Lines over length", columns)
    rows = [{**each.r2, **each._asdict()} for each in left]
    if rows:
        cells = {"left_out": ("left out", "{:d}"), "folds": ("folds", "{:d}"), "latency_r2": ("R² of L", "{:.4f}"),
                 "beyond": ("saturated", "{:d}")}  # fmt: skip
        print_rows(rows, "R² at lengths left out", {**cells, **{name: (f"R² of {name}", "{:.3f}") for name in wanted}})


def _pair_of_experts(text: str) -> tuple[int, int]:
    values = numbers(text, int, "--experts")
    if len(values) != 2 or not 1 <= values[0] <= values[1]:
        raise BadInput(f"--experts takes m,M with 1 <= m <= M, such as 8,128, not {text!r}")
    return values[0], values[1]
