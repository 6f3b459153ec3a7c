"""Running means: of rounds and of the overhead between passes, with initial guesses, of one UE and over UEs."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np

from testbed.bs.scheduling.admission import Floats, RoundShape
from testbed.optim.pass_time import NO_OVERHEAD, PassOverhead

Reals = tuple[float, ...]
MEMORY = 300
"""Rounds of a UE after which one counts 1/e of a new one."""
GUESS = RoundShape(new=6, cached=300, committed=3, draft_s=0.1, network_s=0.05)
"""The mean round before anything is measured: windows of five tokens, three committed."""
GUESS_ROUNDS = 20
"""Weight of a typical round in what is expected of one UE, in measured rounds."""
OVERHEAD_MEMORY = 100
"""Passes after which one counts 1/e of a new one in the overhead."""
LEAST_SPREAD = 0.25
"""Variance of batch sizes below which passes do not tell the overhead per request."""
MOST_TIME_S = 60.0
"""Time that a round counts at most, as drafting and on the link."""
MOST_UES = 1024
"""UEs whose means are kept; the least recently heard one goes first."""
LEAST_COMMITTED = 1e-3
"""Tokens that a mean round commits at least; under `split` the UE draws some of them."""
LEAST_SHARE = 0.5
"""Share of the tokens of a typical round that a UE counts at least as committing."""
OWN_TOKENS = 10
"""Weight of a UE's acceptance rate in that of its session, and of a typical rate in that of a UE, in tokens."""
LEAST_UES = 3
"""UEs whose median acceptance rate says something about others."""
KEEP = math.exp(-1 / MEMORY)
_GUESSED: Reals = tuple(vars(GUESS).values())
_COMMITTED = list(vars(GUESS)).index("committed")


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
    def line(self) -> PassOverhead:
        """The fit so far, no part negative; 0 without passes."""
        if not self._weight:
            return NO_OVERHEAD
        mean, mean_s = self._n / self._weight, self._s / self._weight
        variance = max(self._nn / self._weight - mean**2, 0.0)
        request_s = max(0.0, (self._ns / self._weight - mean * mean_s) / (variance + LEAST_SPREAD))
        request_s = min(request_s, mean_s / mean)
        return PassOverhead(max(0.0, mean_s - request_s * mean), request_s)


@dataclass(slots=True)
class UeRounds:
    """The rounds of one UE, with exponential forgetting."""

    weight: float = 0.0
    sums: Reals = (0.0,) * len(_GUESSED)
    """[5] sums of the fields of their `RoundShape`."""
    accepted: float = 0.0
    of: Reals = (0.0, 0.0)
    """[2] tokens that the accepted ones are a share of: with first rejections, and all that were drafted."""

    def add(self, shape: Reals, accepted: int, rejected: int, drafted: int) -> None:
        """Add a round."""
        self.weight = KEEP * self.weight + 1
        self.sums = tuple(KEEP * before + value for before, value in zip(self.sums, shape, strict=True))
        self.accepted = KEEP * self.accepted + accepted
        self.of = (KEEP * self.of[0] + accepted + rejected, KEEP * self.of[1] + drafted)


_NO_ROUNDS = UeRounds()


class Averages:
    """Means of rounds and acceptance rates, of each UE and of a typical one.

    UEs report the times in their rounds, and choose prefixes, drafts and how many rounds they have. What is expected of
    one UE therefore comes from its own rounds, and from medians over the UEs, so that none alone changes what is
    expected of others.
    """

    def __init__(self) -> None:
        self._ues: OrderedDict[bytes, UeRounds] = OrderedDict()
        self._typical = _GUESSED
        self._rates: list[float | None] = [None, None]
        """Typical acceptance rates: of the tokens in `UeRounds.of`."""
        self._due = 1
        """Rounds until the medians are computed again."""

    def add(
        self, ue: bytes, shape: tuple[float, float, float, float, float], accepted: int, rejected: int, drafted: int = 0
    ) -> None:
        """Add a round: the fields of its `RoundShape`, its accepted tokens, its first rejections (0 or 1), and its
        drafted tokens. An empty window leaves the acceptance rates as they are.
        """
        rounds = self._ues.setdefault(ue, UeRounds())
        self._ues.move_to_end(ue)
        times_s = (min(time_s, MOST_TIME_S) for time_s in shape[3:])
        rounds.add((*shape[:3], *times_s), accepted, rejected, drafted)
        if len(self._ues) > MOST_UES:
            self._ues.popitem(last=False)
        self._due -= 1
        if self._due <= 0:
            self._compute_medians()
            self._due = 1 + len(self._ues) // 8

    def _compute_medians(self) -> None:
        """Typical round: medians of the UEs' means and the guess, which counts twice for an odd number of UEs. Typical
        acceptance rates: the upper medians of the UEs' rates.
        """
        weights = np.array([rounds.weight for rounds in self._ues.values()])[:, np.newaxis]
        means = np.array([rounds.sums for rounds in self._ues.values()]) / weights
        values = np.vstack([means, *[_GUESSED] * (1 + len(means) % 2)])
        self._typical = tuple(np.sort(values, axis=0)[len(values) // 2].tolist())
        for of in range(len(self._rates)):
            rates = sorted(rounds.accepted / rounds.of[of] for rounds in self._ues.values() if rounds.of[of])
            self._rates[of] = rates[len(rates) // 2] if len(rates) >= LEAST_UES else None

    def expected(self, ue: bytes | None = None) -> RoundShape:
        """The round expected of one UE: the mean of its own, shrunk towards a typical one; None: a typical one."""
        [[new, cached, committed, draft_s, network_s]] = self.expected_values([ue]).tolist()
        return RoundShape(new=new, cached=cached, committed=committed, draft_s=draft_s, network_s=network_s)

    def expected_values(self, ues: Sequence[bytes | None]) -> Floats:
        """The fields of `expected` for each of these UEs [n, 5], without its checks."""
        rounds = [_NO_ROUNDS if ue is None else self._ues.get(ue, _NO_ROUNDS) for ue in ues]
        weights = np.array([one.weight for one in rounds])[:, np.newaxis]
        sums = np.array([one.sums for one in rounds]).reshape(-1, len(_GUESSED))
        typical = np.array(self._typical)
        values = np.where(weights > 0, (sums + GUESS_ROUNDS * typical) / (weights + GUESS_ROUNDS), typical)
        least = max(LEAST_COMMITTED, LEAST_SHARE * self._typical[_COMMITTED])
        values[:, _COMMITTED] = np.maximum(values[:, _COMMITTED], least)
        return values

    def acceptance(self, ue: bytes, accepted: int, rejected: int) -> float | None:
        """α of a session with these accepted tokens and first rejections, shrunk towards that of its UE, and this
        towards a typical one; None: none of them is known.
        """
        return self._rate(ue, accepted, accepted + rejected, 0)

    def accepted_share(self, ue: bytes, accepted: int, drafted: int) -> float | None:
        """Accepted / drafted tokens of a session, shrunk likewise; None: neither is known."""
        return self._rate(ue, accepted, drafted, 1)

    def _rate(self, ue: bytes, accepted: int, of: int, column: int) -> float | None:
        rounds, prior = self._ues.get(ue), self._rates[column]
        if rounds is not None and rounds.of[column]:
            weight = 0 if prior is None else OWN_TOKENS
            prior = (rounds.accepted + weight * (prior or 0.0)) / (rounds.of[column] + weight)
        return None if prior is None else (accepted + OWN_TOKENS * prior) / (of + OWN_TOKENS)


class Mean:
    """A running mean: arithmetic until the memory is full, then exponential."""

    def __init__(self, memory: float, start: float = 0.0) -> None:
        self._memory, self._count = memory, 0.0
        self.value = start

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add a value; a weight of n equals adding it n times, and one of 0 changes nothing."""
        if weight == 0:
            return
        self._count = min(self._count + weight, max(self._memory, weight))
        share = weight / self._count  # at most 1, so that rounding never leaves the range of the values
        self.value += (value - self.value) * share


class TypicalMean:
    """Median over the UEs of their running means, so that no UE alone moves it.

    Args:
        start: value before any; one of those that the median is taken of, or two for an odd number of UEs.
    """

    def __init__(self, start: float | None = None) -> None:
        self._start = start
        self._ues: OrderedDict[bytes, Mean] = OrderedDict()
        self._due = 0
        self.value = start or 0.0

    @property
    def ues(self) -> int:
        """Number of UEs with values."""
        return len(self._ues)

    def add(self, ue: bytes, value: float, weight: float = 1.0) -> None:
        """Add a value of a UE's; a weight of n equals adding it n times."""
        self._ues.setdefault(ue, Mean(float(MEMORY))).add(value, weight)
        self._ues.move_to_end(ue)
        if len(self._ues) > MOST_UES:
            self._ues.popitem(last=False)
        self._due -= 1
        if self._due <= 0:
            given = [] if self._start is None else [self._start] * (1 + len(self._ues) % 2)
            self.value = median_low([*given, *(mean.value for mean in self._ues.values())])
            self._due = 1 + len(self._ues) // 8


class LargestMeans:
    """Running means of UEs, and the largest of all but one."""

    def __init__(self) -> None:
        self._ues: OrderedDict[bytes, Mean] = OrderedDict()
        self._due = 0
        self._largest: list[tuple[float, bytes]] = []

    def add(self, ue: bytes, value: float) -> tuple[float, float]:
        """Add a value of a UE's; returns its mean, and the largest mean of the others (infinite if there are none)."""
        mean = self._ues.setdefault(ue, Mean(float(MEMORY)))
        mean.add(value)
        self._ues.move_to_end(ue)
        if len(self._ues) > MOST_UES:
            self._ues.popitem(last=False)
        self._due -= 1
        if self._due <= 0:
            self._largest = heapq.nlargest(2, ((one.value, name) for name, one in self._ues.items()))
            self._due = 1 + len(self._ues) // 8
        return mean.value, next((largest for largest, name in self._largest if name != ue), math.inf)


class Rate:
    """Events per second with exponential forgetting, without bias at the start."""

    def __init__(self, memory_s: float) -> None:
        self._memory_s, self._sum = memory_s, 0.0
        self._begun_s: float | None = None
        self._last_s = 0.0

    def add(self, count: float, now_s: float) -> float:
        """Add events at this time; returns the rate."""
        if self._begun_s is None:
            self._begun_s = self._last_s = now_s
        if now_s < self._last_s:  # a clock that steps back: no time has passed
            self._begun_s, self._last_s = self._begun_s + now_s - self._last_s, now_s
        self._sum = self._sum * math.exp((self._last_s - now_s) / self._memory_s) + count
        self._last_s = now_s
        past = -math.expm1((self._begun_s - now_s) / self._memory_s)
        return self._sum / self._memory_s / max(past, 0.1)
