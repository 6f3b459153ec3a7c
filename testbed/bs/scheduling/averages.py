"""Running averages of rounds and of the overhead between passes, with initial guesses."""

from __future__ import annotations

import math
from typing import NamedTuple

from testbed.bs.scheduling.admission import RoundShape

MEMORY = 1000
"""Rounds after which one counts 1/e of a new one."""
GUESS = RoundShape(new=6, cached=300, committed=3, draft_s=0.1, network_s=0.05)
"""The mean round before anything is measured: windows of five tokens, three committed."""
GUESS_ROUNDS = 20
"""Weight of the guess, in measured rounds."""
OVERHEAD_MEMORY = 100
"""Passes after which one counts 1/e of a new one in the overhead."""
LEAST_SPREAD = 0.25
"""Variance of batch sizes below which passes do not tell the overhead per request."""
OWN_TOKENS = 10
"""Weight of all sessions' acceptance rate in that of one session, in tokens of its own."""


class PassOverhead(NamedTuple):
    """Idle time of the engine after a pass while requests are waiting: judging, answering, planning."""

    pass_s: float = 0.0
    request_s: float = 0.0
    """In addition, for each request of the pass."""


NO_OVERHEAD = PassOverhead()


class OverheadEstimator:
    """Fits a line to the overhead over the batch size: exponentially weighted least squares."""

    def __init__(self) -> None:
        self._keep = math.exp(-1 / OVERHEAD_MEMORY)
        self._weight = self._n = self._s = self._nn = self._ns = 0.0

    def add(self, requests: int, stood_s: float) -> None:
        """Add the idle time after a pass of this many requests."""
        n, s, keep = requests, stood_s, self._keep
        self._weight, self._n, self._s = keep * self._weight + 1, keep * self._n + n, keep * self._s + s
        self._nn, self._ns = keep * self._nn + n * n, keep * self._ns + n * s

    @property
    def mean_s(self) -> float:
        """Mean over all passes; 0 without passes."""
        return self._s / self._weight if self._weight else 0.0

    @property
    def line(self) -> PassOverhead:
        """The fit so far, no part negative; 0 without passes."""
        if not self._weight:
            return NO_OVERHEAD
        mean, mean_s = self._n / self._weight, self.mean_s
        variance = max(self._nn / self._weight - mean**2, 0.0)
        request_s = max(0.0, (self._ns / self._weight - mean * mean_s) / (variance + LEAST_SPREAD))
        request_s = min(request_s, mean_s / mean)
        return PassOverhead(mean_s - request_s * mean, request_s)


class Averages:
    """Exponentially weighted means of all sessions' rounds, and their acceptance rate."""

    def __init__(self) -> None:
        self._keep = math.exp(-1 / MEMORY)
        self._weight = float(GUESS_ROUNDS)
        self._sums = [GUESS_ROUNDS * value for value in vars(GUESS).values()]
        self._accepted = self._tried = 0.0

    def add(self, shape: tuple[float, float, float, float, float], accepted: int, rejected: int) -> None:
        """Add a round: the fields of its `RoundShape`, its accepted tokens, and its first rejections (0 or 1)."""
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
        """α of a session with these accepted tokens and first rejections, shrunk towards that of all sessions; None: no
        session has any yet.
        """
        if self._tried == 0:
            return None
        prior = self._accepted / self._tried
        return (accepted + OWN_TOKENS * prior) / (accepted + rejected + OWN_TOKENS)
