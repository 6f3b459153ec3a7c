"""Time per token of a stream: the UE drafts on and sends its tokens in chunks, the target verifies what has come.

Symbols: c tokens of a chunk, A most tokens drafted beyond those whose verdict is known, d seconds per drafted token, R
seconds on the link for a window and its verdict, v(k) seconds of a pass with k drafted tokens, α probability that a
drafted token is accepted if those before it are.

A cycle is the time between two corrections at the BS. At time 0 the UE learns of the first one, which the BS sent at
−R/2, and drafts tokens 1, 2, …; n of them are accepted with probability α^n·(1 − α), and token n + 1 is the next
correction. The UE drafts while no more than A tokens are away, and sends each c of them, which arrive R/2 later. A
pass verifies the tokens that have come and are not decoded yet, k of them, and brings one more of the target's. The
target begins the next pass at once, or, where it `waits`, as soon as a token has come that it has not decoded. The
cycle ends with the pass that covers token n + 1; the UE hears of it R/2 later and completes the token that it is
drafting. Passes do not depend on n until then, so that one schedule serves all n. By renewal the mean time per token
is the mean length of a cycle over 1/(1 − α) tokens.

A = c with waiting is the synchronous round of c tokens; without tokens in time it is the target alone, v(0).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from testbed.errors import BadInput

NEGLIGIBLE = 1e-4
"""Probability of longer runs at which the schedule ends."""
MOST_ALPHA = 0.98
"""Acceptance rates are taken to be no higher."""


class StreamTimes(NamedTuple):
    """Times of a UE and its BS [s]."""

    token_s: float
    """d"""
    link_s: float
    """R, without the pass"""
    pass_s: float
    """v(0)"""
    drafted_s: float = 0.0
    """What each drafted token adds: v(k) = v(0) + k·drafted_s"""


class StreamSetting(NamedTuple):
    """How windows join a stream."""

    chunk: int
    """c"""
    ahead: int
    """A, at least c"""
    waits: bool
    """Whether the target waits for drafted tokens."""


def stream_token_s(setting: StreamSetting, alpha: float, times: StreamTimes, most: int) -> float:
    """Mean seconds per committed token.

    Args:
        most: most drafted tokens of a pass.

    Raises:
        BadInput: a chunk below 1, above `ahead` or above `most`, an acceptance rate outside [0, 1], times that are
            negative or not finite, or a pass without duration.
    """
    if not 1 <= setting.chunk <= min(setting.ahead, most) or not 0 <= alpha <= 1:
        raise BadInput(f"1 ≤ chunk ≤ ahead and α in [0, 1], not {setting.chunk}, {setting.ahead}, {alpha}")
    if not all(math.isfinite(s) and s >= 0 for s in times) or times.pass_s == 0:
        raise BadInput("times must be finite and not negative, and a pass takes time")
    alpha = min(alpha, MOST_ALPHA)
    schedule, cycle_s = _Schedule(setting, times, most), 0.0
    while True:
        before = alpha**schedule.covered
        end_s = schedule.next_pass()
        after = alpha**schedule.covered
        cycle_s += (before if after < NEGLIGIBLE else before - after) * end_s
        if after < NEGLIGIBLE:
            return cycle_s * (1 - alpha)


class _Schedule:
    """The passes of a cycle in which all drafted tokens are accepted."""

    def __init__(self, setting: StreamSetting, times: StreamTimes, most: int) -> None:
        self._setting, self._times, self._most = setting, times, most
        self.covered = 0
        """Tokens that the target has decoded."""
        self._free_s = -times.link_s / 2
        """End of the last pass."""
        self._known = [(0.0, 0)]
        """Times at which the UE learns how many tokens are decoded."""
        self._seen = 0
        """Entries of those that the drafter has used."""
        self._drafter_s, self._next, self._first = 0.0, 1, 1
        """When the drafter is free, the token that it drafts next, and the first one that is not sent."""
        self._came: list[tuple[int, float]] = []
        """Last tokens of chunks, and their arrivals."""

    def next_pass(self) -> float:
        """The next pass; returns when the UE, having learnt of its end, could draft anew."""
        start_s = self._free_s
        if self._setting.waits:
            while not self._came or self._came[-1][0] <= self.covered:
                self._draft()
            start_s = max(start_s, next(at_s for last, at_s in self._came if last > self.covered))
        self._draft_until(start_s)
        last = max((last for last, at_s in self._came if at_s <= start_s), default=0)
        drafted = min(max(0, last - self.covered), self._most)
        self._free_s = start_s + self._times.pass_s + drafted * self._times.drafted_s
        told_s = self._free_s + self._times.link_s / 2
        self._draft_until(told_s)
        self.covered += drafted + 1
        self._came = [(last, at_s) for last, at_s in self._came if last > self.covered]
        self._known.append((told_s, self.covered))
        return max(told_s, self._drafter_s) if self._setting.waits else told_s

    def _draft_until(self, time_s: float) -> None:
        while self._drafter_s < time_s and self._draft():
            pass

    def _draft(self) -> bool:
        """Draft one more token; returns whether that needs no verdict to come."""
        while self._seen + 1 < len(self._known) and (
            self._known[self._seen + 1][0] <= self._drafter_s
            or self._next - self._known[self._seen][1] > self._setting.ahead
        ):
            self._seen += 1
            self._drafter_s = max(self._drafter_s, self._known[self._seen][0])
        known = self._known[self._seen][1]
        if self._next <= known:
            self._next = self._first = known + 1
        if self._next - known > self._setting.ahead:
            return False
        self._drafter_s += self._times.token_s
        self._next += 1
        if self._next - self._first >= self._setting.chunk:
            self._came.append((self._next - 1, self._drafter_s + self._times.link_s / 2))
            self._first = self._next
        return True
