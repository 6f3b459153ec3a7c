"""Admission: whether another UE's token speed can be guaranteed, and which slower one can."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients


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


class Guarantees(NamedTuple):
    """Guaranteed sessions that are alike."""

    speed_tps: float
    sessions: int
    shape: RoundShape
    """Their mean round."""


class _GuaranteedLoad(NamedTuple):
    """What guarantees take together."""

    rounds: float
    """Rounds per second."""
    busy: float
    """Share of the verifier's time, without the constant of its passes."""
    tokens: float
    """Tokens in the prefix cache."""


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
    passes hold R·T requests each and last T = c / (1 − R·m). A round may have to wait for the running pass before its
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
            typical: that of other UEs, which need enough time per round, too; None: the same. Their own would let one
                UE refuse all others by the times that it reports.

        Raises:
            BadInput: a speed that is not positive, or a negative number of UEs.
        """
        if not 0 < speed_tps < math.inf:
            raise BadInput(f"a class is a positive speed in tokens a second, not {speed_tps:g}")
        if any(not 0 < given.speed_tps < math.inf or given.sessions < 0 for given in load):
            raise BadInput("the load is a number of UEs, 0 or more, by positive speed")
        others = max((given.speed_tps for given in load if given.sessions), default=0.0)
        need_s = self._slack_s(others, typical or shape) if others else math.inf
        taken = self._load(load)
        asked = self._holds(speed_tps, taken, shape, need_s)
        slower = sorted((speed for speed in self.classes if speed < speed_tps), reverse=True)
        best = next((speed for speed in slower if self._holds(speed, taken, shape, need_s)), None)
        used = self._used(self._joined(taken, speed_tps, shape))
        return AdmissionDecision(asked, speed_tps if asked else best, used)

    def utilisation(self, load: Sequence[Guarantees]) -> float:
        """Share of the verifier's time that these guarantees take."""
        return self._used(self._load(load))

    def _load(self, load: Sequence[Guarantees]) -> _GuaranteedLoad:
        rounds = [given.speed_tps * given.sessions / given.shape.committed for given in load]
        busy = math.fsum(rate * self._share_s(given.shape) for rate, given in zip(rounds, load, strict=True))
        tokens = math.fsum(given.sessions * (given.shape.cached + given.shape.new) for given in load)
        return _GuaranteedLoad(math.fsum(rounds), busy, tokens)

    def _joined(self, taken: _GuaranteedLoad, speed_tps: float, shape: RoundShape) -> _GuaranteedLoad:
        return _GuaranteedLoad(*map(sum, zip(taken, self._load([Guarantees(speed_tps, 1, shape)]), strict=True)))

    def _used(self, taken: _GuaranteedLoad) -> float:
        return taken.busy + taken.rounds * self.coefficients.c / self.max_requests

    def _holds(self, speed_tps: float, taken: _GuaranteedLoad, shape: RoundShape, need_s: float) -> bool:
        """Whether a UE can join where the others need passes of at most `need_s` / 2."""
        joined = self._joined(taken, speed_tps, shape)
        if self._used(joined) > self.limit or joined.tokens > (self.kv_tokens or math.inf):
            return False
        spare = 1 - joined.busy
        share_s = self._share_s(shape)
        pass_s = max(self.coefficients.c / spare, self.coefficients.c + share_s) if spare > 0 else math.inf
        return min(need_s, self._slack_s(speed_tps, shape)) >= 2 * pass_s

    def _slack_s(self, speed_tps: float, shape: RoundShape) -> float:
        """Time for queueing and verification in a round at this speed (eq. 6)."""
        return shape.committed / speed_tps - shape.draft_s - shape.network_s

    def _share_s(self, shape: RoundShape) -> float:
        times = self.coefficients
        return (times.a + times.b_compute * (shape.cached + shape.new)) * shape.new + times.b_read * shape.cached
