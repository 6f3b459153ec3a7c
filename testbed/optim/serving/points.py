"""Operating points of a server, and the columns of the latency model that belong to them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.optim.serving.model import Array, coverage, cycle_features

Form = Literal["load", "speculation"]
SETTING = ("alpha", "k", "prefill", "decode")
"""Columns beside the load. Eq. 3 as printed does not use prefill: its coefficients are those of one prompt length."""
NEEDED = ("alpha", "k", "decode")
"""What the speculation-aware form cannot do without."""


@dataclass(frozen=True)
class Points:
    """[n] each: load in requests a second, and where they are known α, k, prompt and response tokens.

    Raises:
        BadInput: no points, arrays of different lengths, values out of range.
    """

    rps: Array
    alpha: Array | None = None
    k: Array | None = None
    prefill: Array | None = None
    decode: Array | None = None

    def __post_init__(self) -> None:
        for name, values in self._given().items():
            if values.ndim != 1 or values.size != self.rps.size:
                raise BadInput(f"{name} needs one value for each of {self.rps.size} points")
            if not np.all(np.isfinite(values) & (values >= 0)):
                raise BadInput(f"{name} must be finite and not negative")
        if not self.rps.size:
            raise BadInput("there are no points; give one load or more")
        if self.k is not None and np.any(self.k != np.floor(self.k)):
            raise BadInput("k must be a whole number, 0 or more")
        if self.alpha is not None and np.any(self.alpha > 1):
            raise BadInput("alpha must lie in [0, 1]")
        if self.decode is not None and np.any(self.decode == 0):
            raise BadInput("decode must be positive: tokens of a response")

    @property
    def form(self) -> Form:
        """The speculation-aware form where what it needs is known and something is drafted."""
        if self.k is None or not self.k.any() or any(getattr(self, name) is None for name in NEEDED):
            return "load"
        return "speculation"

    @property
    def verified(self) -> Array:
        """[n] tokens that a request has in one verification: k + 1, and one where k is not known."""
        return np.ones_like(self.rps) if self.k is None else self.k + 1

    def take(self, rows: NDArray[np.bool_]) -> Points:
        """The points of these rows."""
        return Points(**{name: values[rows] for name, values in self._given().items()})

    def features(self, form: Form) -> Array:
        """[n, p] what C1 and C2 are sums of: one column, or the three of eq. 3.

        Raises:
            BadInput: the speculation-aware form, and a column of it is missing.
        """
        if form == "load":
            return np.ones((self.rps.size, 1))
        if self.alpha is None or self.k is None or self.decode is None:
            lacking = [name for name in NEEDED if getattr(self, name) is None]
            raise BadInput(f"the speculation-aware form needs {', '.join(lacking)} beside the load")
        return cycle_features(self.alpha, self.k, self.decode)

    def _given(self) -> dict[str, Array]:
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: values for name, values in named.items() if values is not None}


def names(form: Form, experts: tuple[int, int] | None) -> tuple[str, ...]:
    """Names of the coefficients, those of C1 first: c1, c2 · c1_p … c2_d · with experts u and s of each."""
    parts = ("",) if form == "load" else ("_p", "_v", "_d")
    shares = ("",) if experts is None else ("_u", "_s")
    return tuple(f"{c}{part}{share}" for c in ("c1", "c2") for share in shares for part in parts)


def spread(features: Array, phi: Array | None) -> Array:
    """[n, p] or [n, 2p]: with coverage φ, a column for what is always paid and one for what coverage adds (eq. 4)."""
    return features if phi is None else np.hstack([features, phi[:, None] * features])


def seen_coverage(points: Points, latency_s: Array, experts: tuple[int, int] | None) -> Array | None:
    """[n] φ where B = RPS·L requests are in flight; None without experts."""
    return None if experts is None else coverage(points.rps * latency_s * points.verified, *experts)
