"""Result rows of a field run: one per place, method and way of running, with confidence intervals over the prompts.

Comparisons are paired by prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.experiments.field.log import FieldLog
from testbed.experiments.field.plan import FieldPlan, Method
from testbed.experiments.field.samples import FIELD, TOGETHER, WAYS
from testbed.intervals import Bootstrap, Interval

Row = Mapping[str, Any]
Reals = NDArray[np.float64]
Key = tuple[str, str]
"""Method and way."""
SUMMED = ("latency_s", "tokens", "rounds", "link_s", "kept", "judged", "uplink_bytes")


def field_rows(log: FieldLog, found: Sequence[Row]) -> list[dict[str, Any]]:
    """One row for every place, method and way with results, over the prompts common to all rows of the place.

    Columns: `latency_s`; `gain`, the baseline's latency over the method's, in the same way; `permissiveness`, the
    fraction of judged mismatches that were accepted (None if none was judged); `differs`, the relative difference of
    the latency from the field's; `goodput_tps`, tokens over latencies; each with `_low` and `_high`, 95 % bootstrap
    intervals. `same_outputs`: fraction of prompts with the same output as in the field. `temp_c_max`,
    `throttled_rounds`: of the device (None: no sensor).
    """
    table = []
    for place in log.plan.places:
        here = [row for row in found if row["place"] == place.name]
        series = {
            (method.name, way): _columns([r for r in here if r["setting"] == method.name and r["way"] == way])
            for method in log.plan.methods
            for way in WAYS
        }
        series = {key: columns for key, columns in series.items() if columns}
        if series:
            table += _place_rows(log, place.name, place.distance_m, series, here)
    return table


def _columns(rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """Numeric columns by prompt."""
    return {
        int(row["request"]): {**{name: float(row[name]) for name in SUMMED}, "right": float(bool(row["right"]))}
        for row in rows
    }


def _place_rows(
    log: FieldLog, place: str, distance_m: float, series: Mapping[Key, dict[int, dict[str, float]]], here: Sequence[Row]
) -> list[dict[str, Any]]:
    shared = sorted(set.intersection(*(set(columns) for columns in series.values())))
    if not shared:
        return []
    table = {
        f"{name} {' '.join(key)}": [columns[request][name] for request in shared]
        for key, columns in series.items()
        for name in (*SUMMED, "right")
    }
    drawn = Bootstrap(table)
    judged_at_all = any(row["right"] is not None for row in here)
    link = _measured(log, place)
    rows = []
    for name, way in series:
        method = next(m for m in log.plan.methods if m.name == name)
        at = f"{name} {way}"
        rows.append({
            "place": place, "distance_m": distance_m, "setting": name, "protocol": method.protocol,
            "window": method.window, "threshold": method.threshold, "way": way, **link, "requests": len(shared),
            "repeats": len({row["repeat"] for row in here if row["request"] in shared}),
            **_interval("latency_s", drawn.mean(f"latency_s {at}")),
            **_interval("gain", _gain(drawn, log.plan, series, name, way)),
            **_interval("permissiveness", _permissiveness(drawn, method, at)),
            **_interval("differs", _differs(drawn, series, name, way)),
            **_interval("goodput_tps", drawn.ratio(f"tokens {at}", f"latency_s {at}")),
            "aal": drawn.ratio(f"tokens {at}", f"rounds {at}").value,
            "rounds": drawn.mean(f"rounds {at}").value,
            "link_s": drawn.mean(f"link_s {at}").value,
            "accuracy": drawn.mean(f"right {at}").value if judged_at_all else None,
            "uplink_bytes": drawn.mean(f"uplink_bytes {at}").value,
            "energy_per_token_j": _per_token_j(here, name, way),
            "temp_c_max": max(_values(here, name, way, "temp_c"), default=None),
            "throttled_rounds": sum(rounds) if (rounds := _values(here, name, way, "throttled")) else None,
            "same_outputs": _same(here, name, way),
        })  # fmt: skip
    return rows


def _values(here: Sequence[Row], name: str, way: str, column: str) -> list[float]:
    """Non-null values of a column for one method and way."""
    mine = [row.get(column) for row in here if row["setting"] == name and row["way"] == way]
    return [value for value in mine if value is not None]


def _gain(drawn: Bootstrap, plan: FieldPlan, series: Iterable[Key], name: str, way: str) -> Interval | None:
    if name == plan.baseline or (plan.baseline, way) not in series:
        return None
    return drawn.ratio(f"latency_s {plan.baseline} {way}", f"latency_s {name} {way}")


def _permissiveness(drawn: Bootstrap, method: Method, at: str) -> Interval | None:
    """Fraction of judged mismatches accepted; None if θ is 0 or nothing was judged."""
    if method.threshold == 0:
        return None
    found = drawn.ratio(f"kept {at}", f"judged {at}", most=1.0)
    return found if np.isfinite(found.value) else None


def _differs(drawn: Bootstrap, series: Iterable[Key], name: str, way: str) -> Interval | None:
    if way == FIELD or (name, FIELD) not in series:
        return None
    found = drawn.ratio(f"latency_s {name} {way}", f"latency_s {name} {FIELD}")
    return Interval(*(value - 1 for value in found))


def _interval(name: str, found: Interval | None) -> dict[str, float | None]:
    values = found if found is not None else (None, None, None)
    finite = [None if value is None or not np.isfinite(value) else float(value) for value in values]
    return dict(zip((name, f"{name}_low", f"{name}_high"), finite, strict=True))


def _per_token_j(here: Sequence[Row], name: str, way: str) -> float | None:
    """The UE's energy per token; None if power was not measured."""
    mine = [row for row in here if (row["setting"], row["way"]) == (name, way)]
    energy_j, tokens = [row["energy_j"] for row in mine], sum(row["tokens"] for row in mine)
    return None if None in energy_j or not tokens else float(sum(energy_j)) / tokens


def _same(here: Sequence[Row], name: str, way: str) -> float | None:
    """Fraction of outputs equal to the field's."""
    if way == FIELD:
        return None
    outputs = {(row["way"], row["request"]): list(row["token_ids"]) for row in here if row["setting"] == name}
    pairs = [(ids, outputs.get((FIELD, request))) for (mine, request), ids in outputs.items() if mine == way]
    return float(np.mean([mine == theirs for mine, theirs in pairs if theirs is not None])) if pairs else None


def _measured(log: FieldLog, place: str) -> dict[str, float | None]:
    """The link as measured at the last visit."""
    visit = log.last_visit(place)
    csi = visit["measured"]["csi"] if visit else {}
    return {name: csi.get(name) for name in ("uplink_mbps", "downlink_mbps", "rtt_ms", "rssi_dbm")}


def agreement(rows: Sequence[Row]) -> dict[str, float]:
    """Largest relative difference of a mean latency from the field's, for each virtual way."""
    found: dict[str, float] = {}
    for row in rows:
        if row["differs"] is not None and row["way"] != TOGETHER:
            found[row["way"]] = max(found.get(row["way"], 0.0), abs(float(row["differs"])))
    return found
