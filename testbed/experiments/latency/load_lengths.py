"""Latency under load over prompt and output lengths (Figs. 6 and 7 of the latency review)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from testbed.experiments.latency.load import Series, measure, write_points
from testbed.experiments.latency.load_config import LoadConfig


def measure_lengths(
    config: LoadConfig, prefills: Sequence[int], decodes: Sequence[int], out: Path, told: Callable[[str], None]
) -> list[Series]:
    """One measurement per prompt and output length, in a subdirectory of `out`; `points.csv` and `all.csv` in `out`
    have all points.

    Raises:
        BadInput: as `load.measure`.
    """
    found = []
    for prefill in prefills:
        for decode in decodes:
            told(f"prompts of {prefill} tokens, outputs of {decode}")
            each = msgspec.structs.replace(config, prefill=prefill, max_tokens=decode)
            found += measure(each, out / f"prefill{prefill}-decode{decode}", told)
    points = [point for series in found for point in series.points]
    write_points(out / "all.csv", points)
    write_points(out / "points.csv", [point for point in points if not point.saturated])
    return found
