"""`testbed latency speedup` and `predict`: what the latency model says at given loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from testbed.cli.latency.limits import NUMBER
from testbed.cli.options import AsJson, numbers
from testbed.cli.output import print_json
from testbed.cli.tables import print_rows
from testbed.errors import BadInput
from testbed.files import file_bytes, json_values
from testbed.optim.serving.model import Costs, CycleCosts, compare
from testbed.optim.serving.points import Points, names

if TYPE_CHECKING:
    from testbed.optim.serving.fit import ServingFit

CONFIDENCE = "95 % interval"


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
        document = json_values(file_bytes(path))
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
