"""Latency under load over prompt and output lengths (Figs. 6 and 7 of the latency review)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from testbed.experiments.latency.load import Series, measure, write_tables
from testbed.experiments.latency.load_config import LoadConfig


def measure_lengths(
    config: LoadConfig, prefills: Sequence[int], decodes: Sequence[int], out: Path, told: Callable[[str], None]
) -> list[Series]:
    """One measurement per prompt and output length, in a subdirectory of `out`; the tables in `out` have all
    points.

    Raises:
        BadInput: as `load.measure`.
    """
    found = []
    for prefill in prefills:
        for decode in decodes:
            told(f"prompts of {prefill} tokens, outputs of {decode}")
            each = msgspec.structs.replace(config, prefill=prefill, max_tokens=decode)
            found += measure(each, out / f"prefill{prefill}-decode{decode}", told)
    write_tables(out, found)
    return found
