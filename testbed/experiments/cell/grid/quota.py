"""The responses that decide whether a class of UEs is kept, counted while a cell runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from testbed.experiments.cell.tally import TOLERANCE_S
from testbed.intervals import ClassVerdict, class_verdict

WORST_FIRST: tuple[ClassVerdict, ...] = ("violated", "undecided")


class Quota:
    """The first `most` responses of a group that begin after the warm-up; a class is judged by them.

    Responses that began before count as late, too, while they are overdue, and for good once they have taken twice
    their time: who is never served begins no others.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.begun = self.late = self.in_time = 0
        self.overdue = self.starved = 0
        """Responses from before the end of the warm-up: overdue ones that have not ended, and those that have taken
        twice their time."""

    def begin(self, due_s: float, after_warmup: bool) -> Callable[[], None]:
        """Count a response that begins now and is due at `due_s` on the loop's clock; call the result at its end."""
        if not after_warmup:
            return self._begin_early(due_s)
        if self.begun >= self.most:
            return lambda: None
        self.begun += 1
        late = False

        def violate() -> None:
            nonlocal late
            late = True
            self.late += 1

        timer = asyncio.get_running_loop().call_at(due_s + TOLERANCE_S, violate)

        def ended() -> None:
            timer.cancel()
            self.in_time += not late

        return ended

    def _begin_early(self, due_s: float) -> Callable[[], None]:
        loop, overdue = asyncio.get_running_loop(), False

        def violate() -> None:
            nonlocal overdue
            overdue = True
            self.overdue += 1

        def starve() -> None:
            nonlocal overdue
            overdue = False
            self.overdue, self.starved = self.overdue - 1, self.starved + 1

        times_s = (due_s + TOLERANCE_S, 2 * due_s - loop.time() + 2 * TOLERANCE_S)
        timers = [loop.call_at(at_s, call) for at_s, call in zip(times_s, (violate, starve), strict=True)]

        def ended() -> None:
            for timer in timers:
                timer.cancel()
            self.overdue -= overdue

        return ended

    @property
    def violated(self) -> int:
        """Late responses."""
        return self.late + self.starved + self.overdue

    @property
    def judged(self) -> int:
        """Responses that have ended in time or are late."""
        return self.in_time + self.violated

    def verdict(self, epsilon: float) -> ClassVerdict | None:
        """The class's verdict, whatever the responses do that have not ended; None: not known yet."""
        if self.late + self.starved > epsilon * self.most:
            return "violated"
        if self.in_time >= (1 - epsilon) * self.most and not self.starved + self.overdue:
            return class_verdict(self.late, self.most, epsilon)
        return self.verdict_so_far(epsilon) if self.late + self.in_time == self.most else None

    def verdict_so_far(self, epsilon: float) -> ClassVerdict:
        """The same by the responses that have ended or are late."""
        return class_verdict(self.violated, self.judged, epsilon)


Quotas = Mapping[str, Quota]
"""Quotas by the group's name; a group without one is not judged."""


def verdict_of(quotas: Quotas, epsilon: float) -> ClassVerdict | None:
    """Whether all classes are kept, undecided if there are none; None: not known yet."""
    found = [quota.verdict(epsilon) for quota in quotas.values()]
    known = [one for one in found if one is not None]
    return _worst(known) if "violated" in known or len(known) == len(found) else None


def verdict_so_far(quotas: Quotas, epsilon: float) -> ClassVerdict:
    """The same by the responses that have ended or are late."""
    return _worst([quota.verdict_so_far(epsilon) for quota in quotas.values()])


def _worst(found: Sequence[ClassVerdict]) -> ClassVerdict:
    return next((one for one in WORST_FIRST if one in found), "kept" if found else "undecided")
