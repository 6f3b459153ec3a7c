"""Linear model of a verification pass's duration (WISP, eqs. 18 and 19)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput


class RequestWork(NamedTuple):
    """One request's share of a pass."""

    new: int
    """L_new: tokens that the pass computes: drafted ones, and uncached ones of the prefix."""
    cached: int
    """L_cached: tokens of the prefix whose keys and values come from the cache."""


class PassOverhead(NamedTuple):
    """Idle time of the engine after a pass while requests are waiting: judging, answering, planning."""

    pass_s: float = 0.0
    request_s: float = 0.0
    """Additional time for each request of the pass."""


NO_OVERHEAD = PassOverhead()


@dataclass(frozen=True, slots=True)
class Coefficients:
    """T̂ = a·Σ L_new + b_compute·Σ (L_cached + L_new)·L_new + b_read·Σ L_cached + c, over the requests of a batch.

    The sums are over requests: one more request adds `share_s`, whatever else is in the batch.

    Raises:
        BadInput: a coefficient is no number from 0 to `MOST_S`, or all are 0.
    """

    a: float
    """Seconds per new token."""
    b_compute: float
    """Seconds per query-key interaction."""
    b_read: float
    """Seconds per cached token."""
    c: float
    """Seconds per pass."""

    def __post_init__(self) -> None:
        for name, value in zip(NAMES, self.values, strict=True):
            if not 0 <= value <= MOST_S:
                raise BadInput(f"{name} must be a number of seconds from 0 to {MOST_S:g}, not {value:g}")
        if not any(self.values):
            raise BadInput("the coefficients are all 0, but a pass takes time")

    @property
    def values(self) -> tuple[float, float, float, float]:
        """Coefficients in the order of `NAMES`."""
        return self.a, self.b_compute, self.b_read, self.c

    def share_s(self, new: int, cached: int) -> float:
        """T̂(B ∪ {i}) − T̂(B) for a request i and any non-empty batch B (used by the utility)."""
        return (self.a + self.b_compute * (cached + new)) * new + self.b_read * cached

    def alone_s(self, new: int, cached: int) -> float:
        """T̂({i}): a pass with one request (used by the latest start time)."""
        return self.c + self.share_s(new, cached)

    def batch_s(self, batch: Iterable[RequestWork]) -> float:
        """T̂(B); 0 for an empty batch."""
        shares = [self.share_s(*work) for work in batch]
        return self.c + sum(shares) if shares else 0.0

    def scaled(self, factor: float) -> Coefficients:
        """All coefficients times a factor."""
        return Coefficients(*(factor * value for value in self.values))

    def as_dict(self) -> dict[str, float]:
        """Coefficients by name, as written to files."""
        return dict(zip(NAMES, self.values, strict=True))


MOST_S = 3600.0
"""Largest coefficient."""
NAMES = tuple(field.name for field in fields(Coefficients))
"""a, b_compute, b_read, c."""


def features(batch: Iterable[RequestWork]) -> NDArray[np.float64]:
    """[4] factors of a, b_compute, b_read and c: N_linear, N_interactions, N_cached (eq. 18) and 1."""
    new = interactions = cached = 0
    for work in batch:
        new += work.new
        interactions += (work.cached + work.new) * work.new
        cached += work.cached
    return np.array([new, interactions, cached, 1.0])


def coefficients_of(document: Mapping[str, Any], source: str) -> Coefficients:
    """Read coefficients from a document, which may have other keys too.

    Args:
        source: origin of the document, for error messages.

    Raises:
        BadInput: a coefficient is missing, is not a number, or is out of range.
    """
    missing = [name for name in NAMES if name not in document]
    if missing:
        raise BadInput(f"{source} has no {', '.join(missing)}; it needs {', '.join(NAMES)}, each in seconds")
    given = [document[name] for name in NAMES]
    wrong = [name for name, value in zip(NAMES, given, strict=True) if type(value) not in (int, float)]
    if wrong:
        raise BadInput(f"{source}: {', '.join(wrong)} must be a number")
    try:
        return Coefficients(*(float(value) for value in given))
    except BadInput as exc:
        raise BadInput(f"{source}: {exc}") from exc
