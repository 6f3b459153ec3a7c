"""What UEs lose to each other when they run at the same time, measured from the rounds of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.experiments.field.log import FieldLog
from testbed.experiments.field.order import FieldCell
from testbed.experiments.field.samples import FIELD, TOGETHER, rounds_of

Row = Mapping[str, Any]
ALL = "all places"


def contention(log: FieldLog, steps: Sequence[Sequence[FieldCell]], found: Sequence[Row]) -> dict[str, Any]:
    """A row for each place and method, and one of all places, as `together`; empty without steps.

    Args:
        steps: finished steps of all places at the same time.
        found: rows of `samples`.

    Columns: `goodput_tps` (committed tokens over latencies) at the same time and `alone_tps`, over the same prompts;
    `share`, the former over the latter. `link_ratio`, time on the link per uplink byte at the same time over alone.
    `draft_ratio`, the same of drafting time per drafted token: what UEs of one machine lose to shared processors.
    `overlap`, share of the run's rounds during which all others ran, on one clock.
    """
    rows = []
    for method in log.plan.methods if steps else ():
        mine = [step for step in steps if step[0].method == method.name]
        here = [_row(log, [step[i] for step in mine], mine, found) for i in range(len(log.plan.places)) if mine]
        if here:
            rows += [*here, _sum(here)]
    return {"together": rows} if steps else {}


def _row(
    log: FieldLog, cells: Sequence[FieldCell], steps: Sequence[Sequence[FieldCell]], found: Sequence[Row]
) -> dict[str, Any]:
    place, method, repeats = cells[0].place, cells[0].method, {cell.repeat for cell in cells}
    alone = [FieldCell(place, repeat, method) for repeat in sorted(repeats)]
    mine = [row for row in found if (row["place"], row["setting"]) == (place, method) and row["repeat"] in repeats]
    together_tps, alone_tps = (_goodput_tps([row for row in mine if row["way"] == way]) for way in (TOGETHER, FIELD))
    after, before = ([row for cell in some for row in rounds_of(log, cell)] for some in (cells, alone))
    return {
        "place": place, "method": method, "repeats": len(repeats), "goodput_tps": together_tps, "alone_tps": alone_tps,
        "share": together_tps / alone_tps,
        "link_ratio": _ratio(_per(after, "link_s", "uplink_bytes"), _per(before, "link_s", "uplink_bytes")),
        "draft_ratio": _ratio(_per(after, "draft_s", "drafted"), _per(before, "draft_s", "drafted")),
        "overlap": sum(overlap_of(log, cell, step) for cell, step in zip(cells, steps, strict=True)) / len(cells),
    }  # fmt: skip


def _sum(here: Sequence[Row]) -> dict[str, Any]:
    """The UEs of all places: sums of goodputs, the largest ratios, the least overlap."""
    sums = {name: sum(row[name] for row in here) for name in ("goodput_tps", "alone_tps")}
    ratios = {
        name: max((row[name] for row in here if row[name] is not None), default=None)
        for name in ("link_ratio", "draft_ratio")
    }
    whole = {"share": sums["goodput_tps"] / sums["alone_tps"], "overlap": min(row["overlap"] for row in here)}
    return {**here[0], "place": ALL, **sums, **ratios, **whole}


def overlap_of(log: FieldLog, cell: FieldCell, step: Sequence[FieldCell]) -> float:
    """Share of a cell's rounds, first to last, during which all cells of the step had theirs."""
    spans = {one: _span(log, one) for one in step}
    start_s, end_s = max(start for start, _ in spans.values()), min(end for _, end in spans.values())
    own_start_s, own_end_s = spans[cell]
    return max(0.0, end_s - start_s) / (own_end_s - own_start_s) if own_end_s > own_start_s else 0.0


def _span(log: FieldLog, cell: FieldCell) -> tuple[float, float]:
    """Begin of the first and end of the last round, on this machine's monotonic clock."""
    rounds, times = rounds_of(log, cell), log.times_of(cell)
    offset_s = 0.0 if times is None else float(times.get("offset_s", 0.0))
    return min(row["begin_s"] for row in rounds) - offset_s, max(row["end_s"] for row in rounds) - offset_s


def _goodput_tps(rows: Sequence[Row]) -> float:
    return float(sum(row["tokens"] for row in rows) / sum(row["latency_s"] for row in rows))


def _per(rounds: Sequence[Row], what: str, each: str) -> float:
    """Sum of a column over that of another; 0 where that is 0."""
    count = sum(row[each] for row in rounds)
    return float(sum(row[what] for row in rounds) / count) if count else 0.0


def _ratio(one: float, other: float) -> float | None:
    """None: there was nothing."""
    return one / other if other else None
