"""Eq. 19 fitted to measured passes: ordinary least squares, intervals, and how well it does (WISP, Appendix C)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.intervals import span
from testbed.optim.pass_time import NAMES, Coefficients, RequestWork, features

Reals = NDArray[np.floating[Any]]

FOLDS = 5
RESAMPLES = 1000
LEAST = 6
"""Fewest passes for a fit of four coefficients with degrees of freedom left."""
REGIMES = ("compute", "memory", "mixed")
ABOUT = ("new_tokens", "(cached_tokens + new_tokens)·new_tokens", "cached_tokens", "the constant")


class Sample(NamedTuple):
    """A measured pass."""

    batch: tuple[RequestWork, ...]
    latency_s: float


@dataclass(frozen=True)
class EstimatorScores:
    """Errors of predicted latencies."""

    r2: float | None
    """Coefficient of determination; None: all latencies are equal."""
    adjusted_r2: float | None
    """R² adjusted for the number of terms; None also for four passes or fewer."""
    rmse_s: float
    mae_s: float
    mape: float
    """Mean of |predicted − measured| / measured, as a fraction."""
    bias: float
    """Mean of (predicted − measured) / measured; below 0, deadlines are missed."""
    max_error_s: float
    batches: int


@dataclass(frozen=True)
class EstimatorFit:
    """Fitted coefficients, their intervals and scores."""

    coefficients: Coefficients
    intervals: dict[str, tuple[float, float]]
    """95 % bootstrap intervals, by name."""
    training: EstimatorScores
    cv_r2: tuple[float, float] | None
    """Mean and standard deviation of R² over cross-validation folds; None: fewer than two passes per fold."""
    clamped: tuple[str, ...]
    """Coefficients set to 0 because unconstrained least squares gives a negative one."""
    ols: dict[str, float]
    """Unconstrained least squares; equal to the coefficients if nothing is clamped."""
    requests: int
    seed: int
    resamples: int

    def document(self) -> dict[str, Any]:
        """The fit as a JSON document."""
        scores = self.training
        return {
            **self.coefficients.as_dict(), "r2": scores.r2, "mape": scores.mape, "intervals": self.intervals,
            "adjusted_r2": scores.adjusted_r2, "rmse_s": scores.rmse_s, "mae_s": scores.mae_s,
            "max_error_s": scores.max_error_s, "bias": scores.bias,
            "cv_r2": self.cv_r2 and self.cv_r2[0], "cv_r2_std": self.cv_r2 and self.cv_r2[1],
            "clamped": list(self.clamped), "ols": self.ols,
            "batches": scores.batches, "requests": self.requests, "seed": self.seed, "resamples": self.resamples,
        }  # fmt: skip


def fit(samples: Sequence[Sample], seed: int = 0, resamples: int = RESAMPLES) -> EstimatorFit:
    """Least squares over passes, as in Appendix C; deterministic for a seed.

    Coefficients are constrained to be non-negative; `clamped` names those that the constraint sets to 0. The bootstrap
    resamples passes and refits in the same way.

    Raises:
        BadInput: too few passes, or passes that do not identify the coefficients.
    """
    if resamples < 1:
        raise BadInput(f"a bootstrap takes 1 resample or more, not {resamples}")
    x, y = design(samples)
    _check(x, y)
    scale = x.max(axis=0)
    scaled = x / scale
    free = _least_squares(scaled, y)
    best = _not_negative(scaled, y)
    if not best.any():
        raise BadInput("no coefficients of 0 or more fit these passes: they take less, the more there is to do")
    rng = np.random.default_rng(seed)
    draws = (rng.integers(0, len(y), len(y)) for _ in range(resamples))
    spread = np.array([_not_negative(scaled[draw], y[draw]) for draw in draws]) / scale
    low, high = span(spread)
    found = Coefficients(*(best / scale).tolist())
    return EstimatorFit(
        coefficients=found,
        intervals={name: (float(low[i]), float(high[i])) for i, name in enumerate(NAMES)},
        training=score(found, samples),
        cv_r2=_cross_validate(scaled, y, rng),
        clamped=tuple(name for i, name in enumerate(NAMES) if free.min() < 0 and best[i] == 0),
        ols=dict(zip(NAMES, (free / scale).tolist(), strict=True)),
        requests=sum(len(sample.batch) for sample in samples),
        seed=seed,
        resamples=resamples,
    )


def score(coefficients: Coefficients, samples: Sequence[Sample]) -> EstimatorScores:
    """Errors of these coefficients on measured passes.

    Raises:
        BadInput: no passes.
    """
    if not samples:
        raise BadInput("no passes to score the coefficients on")
    x, y = design(samples)
    error = x @ np.array(coefficients.values) - y
    total, squared, n = float(((y - y.mean()) ** 2).sum()), float((error**2).sum()), len(y)
    r2 = 1 - squared / total if total > 0 else None
    return EstimatorScores(
        r2=r2,
        adjusted_r2=None if r2 is None or n <= len(NAMES) else 1 - (1 - r2) * (n - 1) / (n - len(NAMES)),
        rmse_s=float(np.sqrt(squared / n)),
        mae_s=float(np.abs(error).mean()),
        mape=float((np.abs(error) / y).mean()),
        bias=float((error / y).mean()),
        max_error_s=float(np.abs(error).max()),
        batches=n,
    )


def by_regime(coefficients: Coefficients, samples: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    """Errors by `regime`, and `terms` by coefficient: `share`, the mean share of its term in the predicted latencies,
    and `largest`, the number of passes of which it is the largest (WISP, Fig. 11).
    """
    found: dict[str, dict[str, Any]] = {}
    for kind in REGIMES:
        mine = [sample for sample in samples if regime(sample) == kind]
        if mine:
            parts = design(mine)[0] * np.array(coefficients.values)
            shares, largest = (parts / parts.sum(axis=1, keepdims=True)).mean(axis=0), parts.argmax(axis=1)
            terms = {
                name: {"share": float(shares[i]), "largest": int((largest == i).sum())} for i, name in enumerate(NAMES)
            }
            found[kind] = {**vars(score(coefficients, mine)), "terms": terms}
    return found


def regime(sample: Sample) -> str:
    """`compute` (nothing cached), `memory` (every request has cached tokens), or `mixed`."""
    cached = sum(work.cached > 0 for work in sample.batch)
    return "compute" if not cached else "memory" if cached == len(sample.batch) else "mixed"


def design(samples: Sequence[Sample]) -> tuple[Reals, Reals]:
    """[n, 4] features and [n] seconds."""
    x = np.array([features(sample.batch) for sample in samples]).reshape(-1, len(NAMES))
    return x, np.array([sample.latency_s for sample in samples])


def _check(x: Reals, y: Reals) -> None:
    if len(y) < LEAST:
        raise BadInput(f"{len(y)} batches are too few to fit four coefficients; give {LEAST} or more")
    empty = [ABOUT[i] for i in range(len(NAMES)) if not x[:, i].any()]
    if empty:
        raise BadInput(f"{', '.join(empty)} is 0 in every batch: its coefficient cannot be told; measure some with it")
    if y.max() == y.min():
        raise BadInput("all batches take the same time: nothing can be told from them; measure larger and smaller ones")
    if np.linalg.matrix_rank(x / x.max(axis=0), tol=1e-9 * len(y) ** 0.5) < len(NAMES):
        raise BadInput(
            "new_tokens, cached_tokens and their product go up and down together in these batches: the coefficients "
            "cannot be told apart; vary batch sizes, prompt lengths and cached lengths"
        )


def _least_squares(x: Reals, y: Reals) -> Reals:
    found: Reals = np.linalg.lstsq(x, y, rcond=None)[0]
    return found


def _not_negative(x: Reals, y: Reals) -> Reals:
    """Non-negative least squares.

    Exact: the optimum is plain least squares over its positive coefficients, and four have sixteen subsets.
    """
    best = _least_squares(x, y)
    if best.min() >= 0:
        return best
    best, least = np.zeros(x.shape[1]), float(y @ y)
    for size in range(1, x.shape[1]):
        for kept in itertools.combinations(range(x.shape[1]), size):
            found = np.zeros(x.shape[1])
            found[list(kept)] = _least_squares(x[:, kept], y)
            squared = float(((x @ found - y) ** 2).sum())
            if found.min() >= 0 and squared < least:
                best, least = found, squared
    return best


def _cross_validate(x: Reals, y: Reals, rng: np.random.Generator) -> tuple[float, float] | None:
    if len(y) < 2 * FOLDS:
        return None
    order, scores = rng.permutation(len(y)), []
    for held in np.array_split(order, FOLDS):
        rest = np.setdiff1d(order, held)
        error = x[held] @ _not_negative(x[rest], y[rest]) - y[held]
        total = float(((y[held] - y[held].mean()) ** 2).sum())
        if total > 0:
            scores.append(1 - float((error**2).sum()) / total)
    return (float(np.mean(scores)), float(np.std(scores))) if scores else None
