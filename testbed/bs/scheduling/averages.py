"""What rounds are like on average: the last thousand or so, and a guess until there are any."""

from __future__ import annotations

import math
from typing import NamedTuple

from testbed.bs.scheduling.admission import RoundShape

MEMORY = 1000
"""A round this many rounds ago counts 1/e of a fresh one."""
GUESS = RoundShape(new=6, cached=300, committed=3, draft_s=0.1, network_s=0.05)
"""Before anything is measured: a window of five, three tokens of it and its correction kept."""
GUESS_ROUNDS = 20
"""Measured rounds that weigh as much as the guess."""
OVERHEAD_MEMORY = 100
"""The same for passes, in what is between them."""
LEAST_SPREAD = 0.25
"""Variance of requests below which passes do not tell what each takes between them."""
OWN_TOKENS = 10
"""A session's own tokens that say as much of its acceptance as all sessions' together."""


class PassOverhead(NamedTuple):
    """How long the engine stands still after a pass although there is work: judging, answering, planning."""

    pass_s: float = 0.0
    request_s: float = 0.0
    """Besides, for each of its requests."""


NO_OVERHEAD = PassOverhead()


class OverheadEstimator:
    """Learns a line through those times, over the requests of the pass: least squares, exponentially weighted."""

    def __init__(self) -> None:
        self._keep = math.exp(-1 / OVERHEAD_MEMORY)
        self._weight = self._n = self._s = self._nn = self._ns = 0.0

    def add(self, requests: int, stood_s: float) -> None:
        """The engine stood still so long after a pass over so many."""
        n, s, keep = requests, stood_s, self._keep
        self._weight, self._n, self._s = keep * self._weight + 1, keep * self._n + n, keep * self._s + s
        self._nn, self._ns = keep * self._nn + n * n, keep * self._ns + n * s

    @property
    def mean_s(self) -> float:
        """Over all passes; without any 0."""
        return self._s / self._weight if self._weight else 0.0

    @property
    def line(self) -> PassOverhead:
        """As learnt so far, neither part negative; without passes 0."""
        if not self._weight:
            return NO_OVERHEAD
        mean, mean_s = self._n / self._weight, self.mean_s
        variance = max(self._nn / self._weight - mean**2, 0.0)
        request_s = max(0.0, (self._ns / self._weight - mean * mean_s) / (variance + LEAST_SPREAD))
        request_s = min(request_s, mean_s / mean)
        return PassOverhead(mean_s - request_s * mean, request_s)


class Averages:
    """Exponentially weighted means over all sessions' rounds, and the share of drafted tokens that is accepted."""

    def __init__(self) -> None:
        self._keep = math.exp(-1 / MEMORY)
        self._weight = float(GUESS_ROUNDS)
        self._sums = [GUESS_ROUNDS * value for value in vars(GUESS).values()]
        self._accepted = self._tried = 0.0

    def add(self, shape: tuple[float, float, float, float, float], accepted: int, rejected: int) -> None:
        """A round: the fields of its `RoundShape`, the drafted tokens that stayed, and how many were the first that did
        not (0 or 1).
        """
        keep = self._keep
        self._weight = keep * self._weight + 1
        self._sums = [keep * total + value for total, value in zip(self._sums, shape, strict=True)]
        self._accepted = keep * self._accepted + accepted
        self._tried = keep * self._tried + accepted + rejected

    def shape(self) -> RoundShape:
        """The mean round."""
        new, cached, committed, draft_s, network_s = (total / self._weight for total in self._sums)
        return RoundShape(new=new, cached=cached, committed=committed, draft_s=draft_s, network_s=network_s)

    def acceptance(self, accepted: int, rejected: int) -> float | None:
        """α of a session with so many accepted tokens and first rejections, drawn towards that of all sessions; None
        while nothing is known of any.
        """
        if self._tried == 0:
            return None
        prior = self._accepted / self._tried
        return (accepted + OWN_TOKENS * prior) / (accepted + rejected + OWN_TOKENS)
