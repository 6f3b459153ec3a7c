"""Latency under load at one prompt and output length after the other (the review's Figs. 6 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from testbed.experiments.latency.load import Series, measure, write_csv
from testbed.experiments.latency.load_config import LoadConfig


def measure_lengths(
    config: LoadConfig, prefills: Sequence[int], decodes: Sequence[int], out: Path, told: Callable[[str], None]
) -> list[Series]:
    """One measurement for each prompt and output length, each in a directory of its own; `points.csv` and `all.csv` of
    all together in `out`.

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
    write_csv(out / "all.csv", points)
    write_csv(out / "points.csv", [point for point in points if not point.saturated])
    return found
