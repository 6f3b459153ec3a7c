"""Confidence intervals of a report's rows over their prompts, and paired comparison of each row with a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.experiments.report.data import RowSource
from testbed.intervals import Bootstrap, Interval

LINK = ("uplink_mbps", "downlink_mbps", "rtt_ms", "per", "file", "jitter_ms")
"""Keys that define a link."""
AT = ("window", *LINK, "seed", "max_tokens", "dataset")
"""Keys in which a row and its baseline agree."""
ESTIMATED = ("uplink_mbps", "downlink_mbps", "rtt_ms", "per")
"""Keys that are measured means of each series if the link follows a trace; the trace then identifies the link."""
METRICS = ("latency_s", "aal", "rounds", "throughput_tps", "accuracy")

Intervals = dict[str, Interval]


def with_intervals(
    parts: Sequence[RowSource], config: Mapping[str, Any], against: str | None = None
) -> list[Intervals]:
    """Intervals by column (`METRICS`) for every row; empty if its prompts are unknown. Rows with a baseline also have
    `speedup`, the baseline's latency over the row's, and `accuracy_lost`, the baseline's accuracy minus the row's.

    The baseline is the first row with the same window and link; all rows over the same prompts share resamples.

    Args:
        config: the run's; its data set and scorer decide which answers are right.
        against: series or method of the baselines; None: any.
    """
    found: list[Intervals] = [{} for _ in parts]
    groups: dict[bytes, list[int]] = {}
    columns = [_columns(part, config) for part in parts]
    for i, one in enumerate(columns):
        if one is not None:
            groups.setdefault(one["request"].tobytes() + one["prompt_len"].tobytes(), []).append(i)
    for members in groups.values():
        table = {f"{i} {name}": values for i in members for name, values in (columns[i] or {}).items()}
        drawn = Bootstrap(
            {name: values for name, values in table.items() if not name.endswith(("request", "prompt_len"))}
        )
        bases = _baselines([parts[i] for i in members], against)
        for i, base in zip(members, bases, strict=True):
            found[i] = _of_row(drawn, i, "right" in (columns[i] or {}))
            if base is not None:
                both = all("right" in (columns[j] or {}) for j in (i, members[base]))
                found[i] |= _against(drawn, members[base], i, both)
    return found


def _columns(part: RowSource, config: Mapping[str, Any]) -> dict[str, NDArray[np.float64]] | None:
    requests = part.requests
    if requests is None or not len(requests["request"]):
        return None
    names = ("request", "prompt_len", "latency_s", "tokens", "rounds")
    if any(requests[name].dtype == object for name in names):  # an older version did not write them
        return None
    found = {name: requests[name].astype(np.float64) for name in names}
    if not all(np.isfinite(found[name]).all() for name in ("latency_s", "tokens", "rounds")):
        return None
    right = part.right(config)
    return found if right is None else {**found, "right": right}


def _of_row(drawn: Bootstrap, i: int, judged: bool) -> Intervals:
    found = {
        "latency_s": drawn.mean(f"{i} latency_s"),
        "aal": drawn.ratio(f"{i} tokens", f"{i} rounds"),
        "rounds": drawn.mean(f"{i} rounds"),
        "throughput_tps": drawn.ratio(f"{i} tokens", f"{i} latency_s"),
    }
    return {**found, "accuracy": drawn.mean(f"{i} right")} if judged else found


def _against(drawn: Bootstrap, base: int, i: int, judged: bool) -> Intervals:
    found = {"speedup": drawn.ratio(f"{base} latency_s", f"{i} latency_s")}
    return {**found, "accuracy_lost": drawn.difference(f"{base} right", f"{i} right")} if judged else found


def _baselines(parts: Sequence[RowSource], against: str | None) -> list[int | None]:
    """Index of each row's baseline, the first row equal in `AT`, over a trace without `ESTIMATED`, and named `against`;
    None if that is the row itself, or if there is none.
    """
    keys = [
        tuple(str(part.row.get(key)) for key in AT if not (part.row.get("file") and key in ESTIMATED)) for part in parts
    ]
    first: dict[tuple[str, ...], int] = {}
    for i, (part, key) in enumerate(zip(parts, keys, strict=True)):
        if against in (None, part.name):
            first.setdefault(key, i)
    return [base if (base := first.get(key)) != i else None for i, key in enumerate(keys)]
