"""Checks for a base station under temporary overload: speeds by class before, during and after it."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

CLASSES = (2.0, 4.0, 6.0, 8.0)
KEPT = 0.25
"""Share of responses that may be slower than their guaranteed speed in virtual time, since short ones are affected by
chance."""


class Response(NamedTuple):
    """One output: its class, when it began and ended, and its tokens."""

    speed_tps: float
    begun_s: float
    ended_s: float
    tokens: int

    @property
    def worth(self) -> float:
        """Speed relative to the guaranteed one."""
        return self.tokens / (self.ended_s - self.begun_s) / self.speed_tps


class Phase(NamedTuple):
    """Statistics of the responses within a time span, by class."""

    worth: dict[float, float]
    """Median."""
    slow: dict[float, float]
    """Share below 1."""
    responses: dict[float, int]

    def kept(self, sigmas: float) -> bool:
        """Whether every class reaches its speed, except for a share `KEPT` of its responses plus `sigmas` standard
        deviations of that share.
        """
        spread = {c: sigmas * math.sqrt(KEPT * (1 - KEPT) / count) for c, count in self.responses.items()}
        return min(self.worth.values()) >= 1 and all(self.slow[c] <= KEPT + spread[c] for c in spread)

    def __str__(self) -> str:
        return "  ".join(
            f"{c:g}: {self.worth[c]:4.2f} ({self.slow[c]:4.0%} of {self.responses[c]} slow)" for c in CLASSES
        )


def phase(responses: Iterable[Response], low_s: float, high_s: float) -> Phase:
    """Statistics between two times."""
    found: dict[float, list[float]] = {c: [] for c in CLASSES}
    for response in responses:
        if low_s <= response.begun_s and response.ended_s <= high_s:
            found[response.speed_tps].append(response.worth)
    return Phase(
        {c: statistics.median(worths) for c, worths in found.items()},
        {c: sum(worth < 1 for worth in worths) / len(worths) for c, worths in found.items()},
        {c: len(worths) for c, worths in found.items()},
    )


def check_order(
    before: Phase, during: Phase, after: Phase, *, refused: int, admission: bool, sigmas: float = 0.0
) -> None:
    """Assert that guaranteed speeds hold before and after. During overload with admission, those of admitted UEs hold
    and others are refused; without, faster classes get a smaller share of their speed, and the slowest nearly all.
    """
    assert before.kept(sigmas) and after.kept(sigmas), f"{before}\n{after}"
    if admission:
        assert refused > 0 and during.kept(sigmas), during
        return
    assert refused == 0
    assert during.worth[CLASSES[0]] > 0.6 and during.worth[CLASSES[-1]] < 0.6, during
    for slower, faster in itertools.pairwise(CLASSES):
        assert during.worth[slower] > during.worth[faster], during
