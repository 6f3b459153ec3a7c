"""Running averages of rounds and of the overhead between passes, with initial guesses."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
MOST_TIME_S = 60.0
"""Time that a round counts at most, as drafting and on the link."""
MOST_TIMES = 5.0
MOST_ROUNDS = 4.0
"""Bounds of one UE's share: see `Averages`."""
REPORTED = [name in ("draft_s", "network_s") for name in vars(GUESS)]
"""Values of a round that the UE measured itself."""
MOST_UES = 1024
FORGOTTEN = 0.05
"""UEs whose means are kept, and the weight below which a UE is forgotten; the least recently heard one goes first."""
MOST_UNIT = 1e100
LEAST_COMMITTED = 1e-3
"""Tokens that a mean round commits at least; under `split` the UE draws some of them."""
OWN_TOKENS = 10
"""Weight of all sessions' acceptance rate in that of one session, in tokens of its own."""


class PassOverhead(NamedTuple):
    """Idle time of the engine after a pass while requests are waiting: judging, answering, planning."""

    pass_s: float = 0.0
    request_s: float = 0.0
    """Additional time for each request of the pass."""


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


class UeRounds(NamedTuple):
    """The rounds of one UE: their weight, and the sums of their values [5], both in units of the latest round."""

    weight: float
    sums: NDArray[np.float64]


class Averages:
    """Exponentially weighted means of all sessions' rounds, and their acceptance rate.

    UEs report the times in their rounds, and choose how many rounds they have. No UE can therefore move the means by
    more than its share: a UE's mean times count up to `MOST_TIMES` times the median over the UEs (the lower one, with
    the guess as one of them) or the guess, whichever is larger, and its rounds up to `MOST_ROUNDS` times the mean of
    the others' and the guess. Within these bounds the means are those of all rounds.
    """

    def __init__(self) -> None:
        self._keep = math.exp(-1 / MEMORY)
        self._weight = float(GUESS_ROUNDS)
        self._sums = [GUESS_ROUNDS * value for value in vars(GUESS).values()]
        self._guess = self._weight
        """Remaining weight of the guess."""
        self._ues: OrderedDict[bytes, UeRounds] = OrderedDict()
        self._unit = 1.0
        """Weight of the latest round in `_ues`; it grows, so that the earlier ones count less."""
        self._accepted = self._tried = self._drafted = 0.0

    def add(
        self, ue: bytes, shape: tuple[float, float, float, float, float], accepted: int, rejected: int, drafted: int = 0
    ) -> None:
        """Add a round: the fields of its `RoundShape`, its accepted tokens, its first rejections (0 or 1), and its
        drafted tokens. An empty window leaves the acceptance rates as they are.
        """
        keep = self._keep
        shape = (*shape[:3], min(shape[3], MOST_TIME_S), min(shape[4], MOST_TIME_S))
        self._weight = keep * self._weight + 1
        self._sums = [keep * total + value for total, value in zip(self._sums, shape, strict=True)]
        self._guess *= keep
        self._accepted = keep * self._accepted + accepted
        self._tried = keep * self._tried + accepted + rejected
        self._drafted = keep * self._drafted + drafted
        self._unit /= keep
        before = self._ues.pop(ue, UeRounds(0.0, np.zeros(len(shape))))
        self._ues[ue] = UeRounds(before.weight + self._unit, before.sums + self._unit * np.array(shape))
        if len(self._ues) > MOST_UES or self._ues[next(iter(self._ues))].weight < FORGOTTEN * self._unit:
            self._ues.popitem(last=False)
        if self._unit > MOST_UNIT:
            self._ues = OrderedDict((ue, UeRounds(w / self._unit, s / self._unit)) for ue, (w, s) in self._ues.items())
            self._unit = 1.0

    def shape(self) -> RoundShape:
        """The mean round."""
        more_weight, more_sums = self._excess()
        weight = self._weight - more_weight
        means = [max(0.0, total - more) / weight for total, more in zip(self._sums, more_sums, strict=True)]
        new, cached, committed, draft_s, network_s = means
        committed = max(committed, LEAST_COMMITTED)
        return RoundShape(new=new, cached=cached, committed=committed, draft_s=draft_s, network_s=network_s)

    def _excess(self) -> tuple[float, list[float]]:
        """Weight and sums [5] by which single UEs exceed their shares."""
        if not self._ues:
            return 0.0, [0.0] * len(self._sums)
        weights = np.array([ue.weight for ue in self._ues.values()])
        sums = np.array([ue.sums for ue in self._ues.values()])
        means, weights = sums / weights[:, None], weights / self._unit
        shares = MOST_ROUNDS * (self._guess + weights.sum() - weights) / len(weights)
        counted = np.minimum(weights, shares) if len(weights) > 1 else weights
        guess = np.array(list(vars(GUESS).values()))
        median = np.sort(np.vstack([means, guess]), axis=0)[len(means) // 2]
        limits = np.where(REPORTED, MOST_TIMES * np.maximum(median, guess), math.inf)
        more = (weights - counted) @ means + counted @ np.maximum(means - limits, 0.0)
        return float((weights - counted).sum()), more.tolist()

    def acceptance(self, accepted: int, rejected: int) -> float | None:
        """α of a session with these accepted tokens and first rejections, shrunk towards that of all sessions; None: no
        session has any yet.
        """
        return self._rate(accepted, accepted + rejected, self._tried)

    def accepted_share(self, accepted: int, drafted: int) -> float | None:
        """Accepted / drafted tokens of a session, shrunk likewise; None: no session has drafted any yet."""
        return self._rate(accepted, drafted, self._drafted)

    def _rate(self, accepted: int, of: int, of_all: float) -> float | None:
        if of_all == 0:
            return None
        return (accepted + OWN_TOKENS * self._accepted / of_all) / (of + OWN_TOKENS)
