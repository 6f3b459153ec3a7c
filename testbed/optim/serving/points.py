"""Operating points of a server, and the latency model's columns for them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.optim.serving.model import Array, coverage, cycle_features

Form = Literal["load", "speculation"]
SETTING = ("alpha", "k", "prefill", "decode")
"""Columns besides the load. Eq. 3 as printed has no prefill: its coefficients hold for one prompt length."""
NEEDED = ("alpha", "k", "decode")
"""Columns that the speculation-aware form requires."""


@dataclass(frozen=True)
class Points:
    """Operating points [n]: load in requests per second and, if known, α, k, prompt and response tokens.

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
        """`speculation` if the points have its columns and k > 0 somewhere, else `load`."""
        if self.k is None or not self.k.any() or any(getattr(self, name) is None for name in NEEDED):
            return "load"
        return "speculation"

    @property
    def verified(self) -> Array:
        """[n] tokens of a request in one verification: k + 1, or 1 if k is unknown."""
        return np.ones_like(self.rps) if self.k is None else self.k + 1

    def take(self, rows: NDArray[np.bool_]) -> Points:
        """Points of the selected rows."""
        return Points(**{name: values[rows] for name, values in self._given().items()})

    def features(self, form: Form) -> Array:
        """[n, p] factors of the coefficients in C1 and C2: a column of ones, or the three of eq. 3.

        Raises:
            BadInput: a missing column of the speculation-aware form.
        """
        if form == "load":
            return np.ones((self.rps.size, 1))
        if self.alpha is None or self.k is None or self.decode is None:
            lacking = [name for name in NEEDED if getattr(self, name) is None]
            raise BadInput(f"the speculation-aware form needs {', '.join(lacking)} besides the load")
        return cycle_features(self.alpha, self.k, self.decode)

    def _given(self) -> dict[str, Array]:
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: values for name, values in named.items() if values is not None}


def names(form: Form, experts: tuple[int, int] | None) -> tuple[str, ...]:
    """Names of the coefficients, those of C1 first: c1, c2; or c1_p … c2_d; with experts, each with _u and _s."""
    parts = ("",) if form == "load" else ("_p", "_v", "_d")
    shares = ("",) if experts is None else ("_u", "_s")
    return tuple(f"{c}{part}{share}" for c in ("c1", "c2") for share in shares for part in parts)


def spread(features: Array, phi: Array | None) -> Array:
    """[n, p], or with coverage φ [n, 2p]: the columns without coverage, then those that φ scales (eq. 4)."""
    return features if phi is None else np.hstack([features, phi[:, None] * features])


def seen_coverage(points: Points, latency_s: Array, experts: tuple[int, int] | None) -> Array | None:
    """[n] coverage φ at B = RPS·L requests in flight; None without experts."""
    return None if experts is None else coverage(points.rps * latency_s * points.verified, *experts)
