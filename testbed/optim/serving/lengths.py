"""Coefficients of the latency model as linear functions of prompt and response length (Figs. 6, 7).

Prefill grows with the prompt; verification with the KV cache, which holds prefill + 0.5·decode tokens on average
(review, Section 4.6). Drafting is assumed to grow with the cache too, which the review leaves open.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from testbed.errors import BadInput
from testbed.optim.serving.fit import ServingFit, fit
from testbed.optim.serving.model import Array
from testbed.optim.serving.points import Points, names

MOST_FOLDS = 2000
"""Maximum number of folds; if there are more ways to leave n out, they are sampled."""


class Law(NamedTuple):
    """A coefficient as a linear function of a length: intercept + slope·length."""

    against: str
    intercept: float
    slope: float
    r2: float


class LengthsLeftOut(NamedTuple):
    """Cross-validation of the laws, with n pairs of lengths left out in each fold."""

    left_out: int
    folds: int
    r2: dict[str, float]
    """R² of each coefficient against its own fit at the lengths left out, over all folds."""
    latency_r2: float | None
    """R² of the latencies in seconds at the lengths left out; None without points."""
    beyond: int
    """Points excluded from it because the predicted coefficients saturate."""


@dataclass(frozen=True)
class Lengths:
    """Speculation-aware fits at each pair of prompt and response length."""

    pairs: list[tuple[float, float]]
    """Prefill and decode tokens of each pair."""
    fits: list[ServingFit]
    rows: list[tuple[Points, Array]]
    """Points and latencies [n] in seconds of each fit."""

    @property
    def table(self) -> Array:
        """[pairs, 6] coefficients."""
        return np.array([each.values for each in self.fits])

    def laws(self) -> dict[str, Law]:
        """Fit a law for each coefficient over all pairs.

        Raises:
            BadInput: fewer than two lengths.
        """
        lines = _lines(self._lengths(), self.table)
        found = _at(lines, self._lengths())
        return {
            name: Law(_against(name), float(lines[0, i]), float(lines[1, i]), r_squared(self.table[:, i], found[:, i]))
            for i, name in enumerate(names("speculation", None))
        }

    def leave_out(self, count: int, seed: int = 0) -> LengthsLeftOut:
        """Fit the laws without `count` pairs and predict these, for every choice of pairs.

        Raises:
            BadInput: too few pairs are left to fit a law.
        """
        total, lengths, table = len(self.pairs), self._lengths(), self.table
        if not 1 <= count <= total - 2:
            raise BadInput(f"of {total} pairs of lengths 1 to {total - 2} can be left out, not {count}")
        truths, guesses, measured, modelled, beyond = [], [], [], [], 0
        folds = _folds(total, count, seed)
        for out in folds:
            stay = [i for i in range(total) if i not in out]
            predicted = np.maximum(_at(_lines(lengths[stay], table[stay]), lengths[list(out)]), 0.0)
            truths.append(table[list(out)])
            guesses.append(predicted)
            for i, values in zip(out, predicted, strict=True):
                points, latency_s = self.rows[i]
                latencies, x = _latencies(values, points)
                measured.append(latency_s[x < 1])
                modelled.append(latencies[x < 1])
                beyond += int(np.sum(x >= 1))
        truth, guess = np.concatenate(truths), np.concatenate(guesses)
        r2 = {name: r_squared(truth[:, i], guess[:, i]) for i, name in enumerate(names("speculation", None))}
        seen = np.concatenate(measured)
        overall = r_squared(seen, np.concatenate(modelled)) if seen.size else None
        return LengthsLeftOut(count, len(folds), r2, overall, beyond)

    def _lengths(self) -> Array:
        """[pairs, 6] length that each coefficient depends on."""
        return np.array([[length(name, *pair) for name in names("speculation", None)] for pair in self.pairs])


def by_lengths(points: Points, latency_s: Array) -> Lengths:
    """Fit each pair of prompt and response length separately.

    Raises:
        BadInput: a missing column, or the points of a pair cannot be fitted.
    """
    if points.form != "speculation" or points.prefill is None or points.decode is None:
        raise BadInput("a fit by length needs the columns alpha, k, prefill and decode")
    keys = np.stack([points.prefill, points.decode], axis=1)
    pairs = [(float(p), float(g)) for p, g in np.unique(keys, axis=0)]
    fits, rows = [], []
    for pair in pairs:
        chosen = np.all(keys == np.array(pair), axis=1)
        rows.append((points.take(chosen), latency_s[chosen]))
        try:
            fits.append(fit(*rows[-1]))
        except BadInput as exc:
            raise BadInput(f"prefill {pair[0]:g}, decode {pair[1]:g}: {exc}") from exc
    return Lengths(pairs, fits, rows)


def length(name: str, prefill: float, decode: float) -> float:
    """Length in tokens that a coefficient depends on: the prompt for prefill, else the mean KV cache."""
    return prefill if name.endswith("_p") else prefill + 0.5 * decode


def r_squared(truth: Array, found: Array) -> float:
    """1 − residual over total sum of squares; for constant `truth`, 1 if it is met exactly, else 0."""
    error, total = float(np.sum((truth - found) ** 2)), float(np.sum((truth - truth.mean()) ** 2))
    return 1 - error / total if total > 0 else float(error == 0)


def _against(name: str) -> str:
    return "prefill" if name.endswith("_p") else "prefill + 0.5*decode"


def _lines(lengths: Array, table: Array) -> Array:
    """[2, 6] intercepts and slopes by least squares."""
    if np.any(np.ptp(lengths, axis=0) == 0):
        raise BadInput("a law over length needs two prompt lengths or more")
    centred = lengths - lengths.mean(axis=0)
    slopes = np.sum(centred * table, axis=0) / np.sum(centred**2, axis=0)
    return np.stack([table.mean(axis=0) - slopes * lengths.mean(axis=0), slopes])


def _at(lines: Array, lengths: Array) -> Array:
    found: Array = lines[0] + lines[1] * lengths
    return found


def _latencies(values: Array, points: Points) -> tuple[Array, Array]:
    """[n] L, invalid where x ≥ 1, and [n] x = RPS·C2."""
    columns = points.features("speculation")
    x = points.rps * (columns @ values[3:])
    found: Array = (columns @ values[:3]) / np.where(x < 1, 1 - x, 1.0)
    return found, x


def _folds(total: int, count: int, seed: int) -> Sequence[tuple[int, ...]]:
    """Pairs left out in each fold: every choice, or `MOST_FOLDS` random ones."""
    if math.comb(total, count) <= MOST_FOLDS:
        return list(itertools.combinations(range(total), count))
    random = np.random.default_rng(seed)
    chosen: list[Any] = [random.choice(total, count, replace=False).tolist() for _ in range(MOST_FOLDS)]
    return [tuple(sorted(each)) for each in chosen]
