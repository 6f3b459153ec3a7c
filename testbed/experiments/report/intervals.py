"""Intervals of a report's rows, over the prompts that they share, and each row held against a baseline by prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.experiments.report.data import Row, RowSource
from testbed.experiments.results.intervals import Bootstrap, Interval

LINK = ("uplink_mbps", "downlink_mbps", "rtt_ms", "per", "file", "jitter_ms")
"""What a link differs in."""
AT = ("window", *LINK, "seed", "max_tokens", "dataset")
"""What a row and its baseline must agree in."""
METRICS = ("latency_s", "aal", "rounds", "throughput_tps", "accuracy")

Intervals = dict[str, Interval]


def with_intervals(parts: Sequence[RowSource], dataset: str | None) -> list[Intervals]:
    """Intervals by column for every row (`METRICS`), and `speedup`, the baseline's latency over its own, and
    `accuracy_lost`, the baseline's accuracy less its own, where it has a baseline; empty where its prompts are unknown.

    The baseline of a row is the first row of its window and link; all rows over the same prompts share their resamples.
    """
    found: list[Intervals] = [{} for _ in parts]
    groups: dict[bytes, list[int]] = {}
    columns = [_columns(part, dataset) for part in parts]
    for i, one in enumerate(columns):
        if one is not None:
            groups.setdefault(one["request"].tobytes() + one["prompt_len"].tobytes(), []).append(i)
    for members in groups.values():
        table = {f"{i} {name}": values for i in members for name, values in (columns[i] or {}).items()}
        drawn = Bootstrap(
            {name: values for name, values in table.items() if not name.endswith(("request", "prompt_len"))}
        )
        bases = _baselines([parts[i].row for i in members])
        for i, base in zip(members, bases, strict=True):
            found[i] = _of_row(drawn, i, "right" in (columns[i] or {}))
            if base is not None:
                both = all("right" in (columns[j] or {}) for j in (i, members[base]))
                found[i] |= _against(drawn, members[base], i, both)
    return found


def _columns(part: RowSource, dataset: str | None) -> dict[str, NDArray[np.float64]] | None:
    requests = part.requests
    if requests is None or not len(requests["request"]):
        return None
    names = ("request", "prompt_len", "latency_s", "tokens", "rounds")
    if any(requests[name].dtype == object for name in names):  # not written by that version
        return None
    found = {name: requests[name].astype(np.float64) for name in names}
    if not all(np.isfinite(found[name]).all() for name in ("latency_s", "tokens", "rounds")):
        return None
    right = part.right(dataset)
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


def _baselines(rows: Sequence[Row]) -> list[int | None]:
    """For every row the first one that agrees with it in `AT`; None where that is itself."""
    first: dict[tuple[str, ...], int] = {}
    found: list[int | None] = []
    for i, row in enumerate(rows):
        base = first.setdefault(tuple(str(row.get(key)) for key in AT), i)
        found.append(base if base != i else None)
    return found
