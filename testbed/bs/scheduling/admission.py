"""Admission: whether another UE's token speed can be guaranteed, and which slower one can."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.optim.pass_time import NO_OVERHEAD, Coefficients, PassOverhead

Floats = NDArray[np.float64]
N = TypeVar("N", float, Floats)


@dataclass(frozen=True, kw_only=True)
class RoundShape:
    """The mean round, as measured.

    Raises:
        BadInput: a round that commits nothing, or negative values.
    """

    new: float
    """Tokens that a pass computes."""
    cached: float
    committed: float
    """Tokens added to the output, the verifier's own included."""
    draft_s: float
    network_s: float

    def __post_init__(self) -> None:
        if not 0 < self.committed < math.inf:
            raise BadInput(f"a round commits something, not {self.committed:g} tokens")
        rest = (self.new, self.cached, self.draft_s, self.network_s)
        if not all(0 <= value < math.inf for value in rest):
            raise BadInput("a round's tokens and times must be 0 or more")


FIELDS = tuple(field.name for field in fields(RoundShape))


class Guarantees(NamedTuple):
    """Guaranteed sessions that are alike."""

    speed_tps: float
    sessions: int
    shape: RoundShape
    """Their mean round."""


class GuaranteedLoad(NamedTuple):
    """What guarantees take together."""

    rounds: float
    """Rounds per second."""
    busy: float
    """Share of the verifier's time, without the constant of its passes."""
    tokens: float
    """Tokens in the prefix cache."""
    slack_s: float
    """Least time of a session for queueing and verification in a round; infinite without guarantees."""


class GuaranteeKinds(NamedTuple):
    """Kinds of guaranteed sessions, and what a session of each takes: arrays [n]."""

    speeds: Floats
    """Tokens per second."""
    committed: Floats
    """Tokens that a round commits."""
    share_s: Floats
    """Time of a round without the constant of its pass."""
    tokens: Floats
    """Tokens in the prefix cache."""
    slack_s: Floats
    """Time for queueing and verification in a round."""

    @property
    def busy(self) -> Floats:
        """Share of the verifier's time, without the constant of passes."""
        return self.speeds / self.committed * self.share_s

    def load(self, sessions: Floats) -> GuaranteedLoad:
        """What sessions take, from their number of each kind [n]."""
        rates = self.speeds * sessions / self.committed
        parts = (rates, rates * self.share_s, sessions * self.tokens)
        rounds, busy, tokens = (math.fsum(part.tolist()) for part in parts)
        slack_s = float(np.min(self.slack_s, where=sessions > 0, initial=math.inf))
        return GuaranteedLoad(rounds, busy, tokens, slack_s)


class AdmissionDecision(NamedTuple):
    """The answer to a UE that asks for a speed."""

    admitted: bool
    best_tps: float | None
    """The fastest class, up to the requested one, that can be guaranteed; None: none."""
    utilisation: float
    """Share of the verifier's time that all guarantees would take, the requested one included; above 1: overload."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Admits as long as all guarantees together leave the verifier spare time, and each UE enough time per round.

    A UE of class s needs s / g rounds per second, each committing g tokens. R rounds per second of m seconds each
    (eq. 19 without its constant), in passes of at most n requests, take R·(m + c/n) of the verifier's time; consecutive
    passes hold R·T requests each and last T = c / (1 − R·m). The time between passes counts as part of them: that of a
    request in m, that of a pass in c. A round may have to wait for the running pass before its
    own: a class with τ (eq. 6) below 2·T cannot be guaranteed. All sessions must fit the prefix cache: if they evict
    each other's tokens, rounds are no longer those that were measured.

    Raises:
        BadInput: no classes, or values that cannot be.
    """

    coefficients: Coefficients
    max_requests: int
    """Requests of one pass."""
    kv_tokens: int | None = None
    """Tokens whose keys and values the prefix cache holds; None: no bound."""
    classes: Sequence[float] = (8.0, 6.0, 4.0, 2.0)
    """Speeds offered [tokens/s]."""
    limit: float = 0.8
    """Utilisation up to which UEs are admitted; queues grow long before 1."""
    between: PassOverhead = NO_OVERHEAD
    """Time between consecutive passes: judging, answering, planning."""

    def __post_init__(self) -> None:
        if not self.classes or not all(0 < speed < math.inf for speed in self.classes):
            raise BadInput("classes are named by their speed in tokens a second: give one positive number or more")
        if self.max_requests < 1:
            raise BadInput(f"a pass takes 1 request or more, not {self.max_requests}")
        if self.kv_tokens is not None and self.kv_tokens < 1:
            raise BadInput(f"a cache holds 1 token or more, not {self.kv_tokens}")
        if not 0 < self.limit <= 1:
            raise BadInput(f"limit must lie in (0, 1], not {self.limit:g}")

    def admissible(
        self, speed_tps: float, load: Sequence[Guarantees], shape: RoundShape, typical: RoundShape | None = None
    ) -> AdmissionDecision:
        """Whether a UE of this class can join.

        Args:
            speed_tps: the requested speed; any positive one.
            load: the guarantees that were given.
            shape: the mean round expected of the UE.
            typical: that of a typical UE; None: the same. Others need enough time per round, too, by their own round or
                a typical one, whichever leaves more: their own alone would let one UE refuse all others by the times
                that it reports.

        Raises:
            BadInput: a speed that is not positive, or a negative number of UEs.
        """
        if any(not 0 < given.speed_tps < math.inf or given.sessions < 0 for given in load):
            raise BadInput("the load is a number of UEs, 0 or more, by positive speed")
        return self.join(speed_tps, self._load(load, typical or shape), shape)

    def join(self, speed_tps: float, taken: GuaranteedLoad, shape: RoundShape) -> AdmissionDecision:
        """As `admissible`, beside the load of the guarantees that were given.

        Raises:
            BadInput: a speed that is not positive.
        """
        if not 0 < speed_tps < math.inf:
            raise BadInput(f"a class is a positive speed in tokens a second, not {speed_tps:g}")
        asked = self._holds(speed_tps, taken, shape)
        slower = sorted((speed for speed in self.classes if speed < speed_tps), reverse=True)
        best = next((speed for speed in slower if self._holds(speed, taken, shape)), None)
        used = self.used(self._joined(taken, speed_tps, shape))
        return AdmissionDecision(asked, speed_tps if asked else best, used)

    def utilisation(self, load: Sequence[Guarantees]) -> float:
        """Share of the verifier's time that these guarantees take."""
        return self.used(self._load(load, None))

    def slack_s(self, speed_tps: float, shape: RoundShape) -> float:
        """Time for queueing and verification in a round at this speed (eq. 6)."""
        return shape.committed / speed_tps - shape.draft_s - shape.network_s

    def hasty(self, kinds: GuaranteeKinds, share: float) -> NDArray[np.bool_]:
        """[n] whether a session of each kind is late even alone, or is faster than all classes and would be late beside
        others that take this share of the time.
        """
        rest, constant_s = 1 - share - kinds.busy, self._constant_s()
        late = (rest <= 0) | (kinds.slack_s * rest < 2 * constant_s)
        never = kinds.slack_s < 2 * (constant_s + kinds.share_s)
        return never | ((kinds.speeds > max(self.classes)) & late)

    def kinds(self, speeds_tps: Sequence[float], rounds: Floats, typical: RoundShape | None = None) -> GuaranteeKinds:
        """Kinds of guarantees by their speeds and the fields of their sessions' mean rounds (`RoundShape`) [n, 5], and
        by a typical round.
        """
        new, cached, committed, draft_s, network_s = rounds.T
        speeds = np.array(speeds_tps)
        slack_s = committed / speeds - draft_s - network_s
        if typical is not None:
            slack_s = np.maximum(slack_s, typical.committed / speeds - typical.draft_s - typical.network_s)
        return GuaranteeKinds(speeds, committed, self._share_s(new, cached), cached + new, slack_s)

    def _load(self, load: Sequence[Guarantees], typical: RoundShape | None) -> GuaranteedLoad:
        rounds = [[getattr(given.shape, name) for name in FIELDS] for given in load]
        shapes = np.array(rounds, np.float64).reshape(len(load), len(FIELDS))
        return self.kinds([given.speed_tps for given in load], shapes, typical).load(
            np.array([given.sessions for given in load])
        )

    def _joined(self, taken: GuaranteedLoad, speed_tps: float, shape: RoundShape) -> GuaranteedLoad:
        rounds = speed_tps / shape.committed
        busy = rounds * self._share_s(shape.new, shape.cached)
        return GuaranteedLoad(
            taken.rounds + rounds, taken.busy + busy, taken.tokens + (shape.cached + shape.new),
            min(taken.slack_s, self.slack_s(speed_tps, shape)),
        )  # fmt: skip

    def used(self, taken: GuaranteedLoad) -> float:
        """Share of the verifier's time that this load takes."""
        return self._used(taken.rounds, taken.busy)

    def parts(self, kinds: GuaranteeKinds) -> Floats:
        """[2, n] parts of the time that may be guaranteed and of the prefix cache that one session takes, by kind."""
        used = self._used(kinds.speeds / kinds.committed, kinds.busy)
        return np.array([used / self.limit, kinds.tokens / (self.kv_tokens or math.inf)])

    def _used(self, rounds: N, busy: N) -> N:
        return busy + rounds * self._constant_s() / self.max_requests

    def _holds(self, speed_tps: float, taken: GuaranteedLoad, shape: RoundShape) -> bool:
        """Whether a UE can join."""
        joined = self._joined(taken, speed_tps, shape)
        if self.used(joined) > self.limit or joined.tokens > (self.kv_tokens or math.inf):
            return False
        spare = 1 - joined.busy
        share_s = self._share_s(shape.new, shape.cached)
        constant_s = self._constant_s()
        pass_s = max(constant_s / spare, constant_s + share_s) if spare > 0 else math.inf
        return joined.slack_s >= 2 * pass_s

    def _share_s(self, new: N, cached: N) -> N:
        """Time of rounds without the constant of their passes."""
        times = self.coefficients
        return (times.a + times.b_compute * (cached + new)) * new + times.b_read * cached + self.between.request_s

    def _constant_s(self) -> float:
        """Constant of a pass."""
        return self.coefficients.c + self.between.pass_s
