"""Admission: whether another UE's token speed can be guaranteed, and which slower one can."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

    def admissible(self, speed_tps: float, load: Mapping[float, int], shape: RoundShape) -> AdmissionDecision:
        """Whether a UE of this class can join.

        Args:
            speed_tps: the requested speed; any positive one.
            load: number of UEs with a guarantee, by speed.
            shape: the mean round of all UEs.

        Raises:
            BadInput: a speed that is not positive, or a negative number of UEs.
        """
        if not 0 < speed_tps < math.inf:
            raise BadInput(f"a class is a positive speed in tokens a second, not {speed_tps:g}")
        if any(not 0 < speed < math.inf or count < 0 for speed, count in load.items()):
            raise BadInput("the load is a number of UEs, 0 or more, by positive speed")
        asked = self._holds(speed_tps, load, shape)
        slower = sorted((speed for speed in self.classes if speed < speed_tps), reverse=True)
        best = next((speed for speed in slower if self._holds(speed, load, shape)), None)
        return AdmissionDecision(asked, speed_tps if asked else best, self.utilisation(_joined(load, speed_tps), shape))

    def utilisation(self, load: Mapping[float, int], shape: RoundShape) -> float:
        """Share of the verifier's time that these guarantees take."""
        round_s = self._share_s(shape) + self.coefficients.c / self.max_requests
        return _rounds_a_second(load, shape) * round_s

    def _holds(self, speed_tps: float, load: Mapping[float, int], shape: RoundShape) -> bool:
        joined = _joined(load, speed_tps)
        kept = sum(joined.values()) * (shape.cached + shape.new)
        if self.utilisation(joined, shape) > self.limit or kept > (self.kv_tokens or math.inf):
            return False
        share_s = self._share_s(shape)
        spare = 1 - _rounds_a_second(joined, shape) * share_s
        pass_s = max(self.coefficients.c / spare, self.coefficients.c + share_s) if spare > 0 else math.inf
        fastest = max(speed for speed, count in joined.items() if count)
        return shape.committed / fastest - shape.draft_s - shape.network_s >= 2 * pass_s

    def _share_s(self, shape: RoundShape) -> float:
        times = self.coefficients
        return (times.a + times.b_compute * (shape.cached + shape.new)) * shape.new + times.b_read * shape.cached


def _joined(load: Mapping[float, int], speed_tps: float) -> dict[float, int]:
    return {**load, speed_tps: load.get(speed_tps, 0) + 1}


def _rounds_a_second(load: Mapping[float, int], shape: RoundShape) -> float:
    return sum(speed * count for speed, count in load.items()) / shape.committed
