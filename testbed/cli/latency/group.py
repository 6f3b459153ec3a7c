"""`testbed latency`: what a server's mean latency does under load, and where speculation stops paying."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from testbed.cli.latency import limits, ramp
from testbed.cli.latency import measure as openloop
from testbed.cli.options import AsJson, configured, numbers
from testbed.cli.output import note, print_json
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand, print_rows
from testbed.config import Config
from testbed.errors import BadInput
from testbed.optim.serving.model import Costs, CycleCosts, compare
from testbed.optim.serving.points import Points, names
from testbed.options import option

if TYPE_CHECKING:
    from testbed.optim.serving.fit import ServingFit

app = CommandGroup(no_args_is_help=True, help="Mean latency of a server under load: measure, fit and predict.")

CONFIDENCE = "95 % interval"
NUMBER = "{:.6g}"


app.command("measure", cls=TableCommand)(openloop.measure)
app.command("ramp", cls=TableCommand)(ramp.ramp)
app.command("limits", cls=TableCommand)(limits.limits)
app.command("ratios", cls=TableCommand)(limits.ratios)
app.command("sizes", cls=TableCommand)(limits.sizes)


@app.callback()
def group() -> None:
    """Mean latency of a server under load."""


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
    seed: Annotated[int, option("Seed of the choice of folds, if there are too many for all.")] = 0


@app.command(cls=TableCommand)
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
    from testbed.experiments.results.latency import read_points, repeats_of

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
    try:
        path.write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as exc:
        raise BadInput(f"cannot write {path}: {exc.strerror or exc}") from exc
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


@app.command(cls=TableCommand)
def speedup(
    dense: Annotated[str, typer.Option(help="C1,C2 in seconds without speculation.")],
    sd: Annotated[str, typer.Option(help="C1,C2 in seconds with speculation.")],
    rps: Annotated[str | None, typer.Option(help="Loads to give the speedup at: 1,2,4.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare speculation with plain decoding: without load, as load grows, and the break-even load.

    C2 ratio above 1: the speedup shrinks with load; below 1: it grows.

    Examples:

        testbed latency speedup --dense 1.20,0.07 --sd 0.78,0.085

        testbed latency speedup --dense 1.20,0.07 --sd 0.92,0.072 --rps 1,4,8,12 --json
    """
    found = compare(_costs(dense, "--dense"), _costs(sd, "--sd"))
    document: dict[str, Any] = {
        name: getattr(found, name) for name in ("zero_load", "c1_ratio", "c2_ratio", "break_even_rps", "wins")
    }
    if rps is not None:
        loads = numbers(rps, float, "--rps")
        gains = found.speedup(loads).tolist()
        document["rows"] = [{"rps": load, "speedup": gain} for load, gain in zip(loads, gains, strict=True)]
    if as_json:
        print_json(document)
        return
    trend = "stays" if found.c2_ratio == 1 else "grows" if found.c2_ratio < 1 else "shrinks"
    print(f"speedup at no load  {found.zero_load:.4g}")
    print(f"C1 ratio            {found.c1_ratio:.4g}")
    print(f"C2 ratio            {found.c2_ratio:.4g}, the speedup {trend} as load grows")
    where = "" if found.break_even_rps is None else f" {found.break_even_rps:.4g} requests/s"
    print(f"speculation wins    {found.wins}{where}")
    if rps is not None:
        print_rows(document["rows"], None, {"rps": ("requests/s", "{:g}"), "speedup": ("speedup", "{:.4f}")})


@app.command(cls=TableCommand)
def predict(
    rps: Annotated[str, typer.Option(help="Loads in requests a second: 1,2,4.")],
    coefficients: Annotated[str | None, typer.Option(help="C1,C2, or the six: c1_p,c1_v,c1_d,c2_p,c2_v,c2_d.")] = None,
    fitted: Annotated[Path | None, typer.Option("--fit", help="File written by `fit --out` or `fit --json`.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Chance that a drafted token is accepted.")] = None,
    k: Annotated[int | None, typer.Option(help="Drafted tokens a cycle; 0: no speculation.")] = None,
    decode: Annotated[float | None, typer.Option(help="Tokens of a response.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict mean latency at loads below saturation; with the fit of several repeats, also intervals.

    Examples:

        testbed latency predict --coefficients 1.20,0.07 --rps 2,8,12

        testbed latency predict --fit fit.json --alpha 0.75 --k 4 --decode 512 --rps 1,2,3 --json
    """
    from testbed.optim.serving.fit import from_document

    if (coefficients is None) == (fitted is None):
        raise BadInput("give --coefficients or --fit, one of them")
    model = from_document(_given(coefficients) if fitted is None else _read_json(fitted))
    if model.form == "load" and (alpha is not None or decode is not None or (k is not None and not model.experts)):
        raise BadInput("--alpha, --k and --decode are for the speculation-aware form; these are C1 and C2 alone")
    loads = np.array(numbers(rps, float, "--rps"))
    given = {"alpha": alpha, "k": k, "decode": decode}
    points = Points(loads, **{name: np.full(loads.shape, float(v)) for name, v in given.items() if v is not None})
    latencies, spans = model.predict(points), model.interval(points)
    rows = []
    for i, (load, value) in enumerate(zip(loads.tolist(), latencies.tolist(), strict=True)):
        low, high = (None, None) if spans is None else (float(v) if np.isfinite(v) else None for v in spans[i])
        rows.append({"rps": load, "latency_s": value, "low_s": low, "high_s": high})
    ceiling = _saturation(model, alpha, k, decode)
    if as_json:
        print_json({"form": model.form, "saturation_rps": ceiling, "rows": rows})
        return
    title = None if ceiling is None else f"Saturates at {ceiling:.5g} requests/s"
    columns_shown = {"rps": ("requests/s", "{:g}"), "latency_s": ("latency s", NUMBER),
                     "low_s": (f"{CONFIDENCE}: from", NUMBER), "high_s": ("to", NUMBER)}  # fmt: skip
    print_rows(rows, title, columns_shown)


def _saturation(model: ServingFit, alpha: float | None, k: int | None, decode: float | None) -> float | None:
    """Load at which latency diverges; None: none, or not known."""
    if model.experts is not None:
        return None
    c = model.values
    costs = Costs(*c) if model.form == "load" else CycleCosts(*c).effective(alpha or 0.0, k or 0, decode or 1.0)
    return float(costs.saturation_rps) if np.isfinite(costs.saturation_rps) else None


def _given(text: str | None) -> dict[str, Any]:
    """Coefficients of a command line, as a fit's document."""
    values = numbers(text or "", float, "--coefficients")
    form = {2: "load", 6: "speculation"}.get(len(values))
    if form is None:
        raise BadInput(f"--coefficients takes C1,C2 or the six of a speculation-aware fit, not {len(values)} numbers")
    wanted = names("load" if form == "load" else "speculation", None)
    return {**dict(zip(wanted, values, strict=True)), "form": form}


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise BadInput(f"cannot read a fit from {path}: {getattr(exc, 'strerror', None) or exc}") from exc
    if not isinstance(document, dict):
        raise BadInput(f"{path} is no fit as `testbed latency fit --json` writes it")
    return document


def _costs(text: str, option: str) -> Costs:
    values = numbers(text, float, option)
    if len(values) != 2:
        raise BadInput(f"{option} takes C1,C2 in seconds, not {text!r}")
    return Costs(*values)


def _pair_of_experts(text: str) -> tuple[int, int]:
    values = numbers(text, int, "--experts")
    if len(values) != 2 or not 1 <= values[0] <= values[1]:
        raise BadInput(f"--experts takes m,M with 1 <= m <= M, such as 8,128, not {text!r}")
    return values[0], values[1]
