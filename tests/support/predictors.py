"""Rejection predictors and traces that need no model."""

from __future__ import annotations

from typing import Any

import numpy as np

from testbed.experiments.predictor.traces import Traces
from testbed.ue.drafters.base import DraftToken
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.predictor import PredictorInfo, RejectionPredictor

Arrays = dict[str, np.ndarray[Any, Any]]


def token(top1: float, token_id: int = 1) -> DraftToken:
    """A token with neutral other statistics."""
    return DraftToken(token_id, top1, 0.0, 0.0, 0.0, np.zeros(2, np.float16))


def info(form: str = "mlp", **fields: Any) -> PredictorInfo:
    """Predictor information for the synthetic pair."""
    given: dict[str, Any] = {
        "model": "mlp",
        "form": form,
        "drafter_fingerprint": "synthetic",
        "target_fingerprint": "synthetic",
        "recall": 0.8,
        "threshold": 0.5,
        "platt": (1.0, 0.0),
    }
    return PredictorInfo(**(given | fields))


def stump(low: float, high: float, cut: float = 0.5, **fields: Any) -> RejectionPredictor:
    """A tree on top1: probability `low` up to `cut`, `high` above it."""
    logit = [float(np.log(p / (1 - p))) for p in (low, high)]
    arrays: Arrays = {
        "feature": np.array([0, -1, -1], np.int8),
        "threshold": np.array([cut, 0.0, 0.0]),
        "left": np.array([1, 0, 0], np.int32),
        "right": np.array([2, 0, 0], np.int32),
        "value": np.array([0.0, *logit]),
        "roots": np.array([0], np.int32),
        "base": np.zeros(1),
    }
    return RejectionPredictor(info("trees", **fields), arrays)


def made_traces(prompts: int = 24, rounds: int = 30, window: int = 6, seed: int = 0) -> Traces:
    """Rounds of a fixed window: acceptance grows with top1, falls with entropy; all statistics are noisy."""
    rng = np.random.default_rng(seed)
    known: list[tuple[float, ...]] = []
    later: list[tuple[float, ...]] = []
    for prompt in range(prompts):
        for number in range(rounds):
            alive = True
            for position in range(1, window + 1):
                ease = rng.normal()
                top1 = 1 / (1 + np.exp(-ease))
                row = (prompt, number, top1, 2 * (1 - top1) + 0.2 * rng.random(), top1 * rng.random(), 3 + rng.normal())
                kept = rng.random() < 1 / (1 + np.exp(-2 * ease - 1))
                if alive:
                    known.append((*row, position, kept))
                    alive = kept
                else:
                    later.append((*row, position))
    table, rest = np.array(known, np.float64), np.array(later, np.float64).reshape(-1, 7)
    return Traces(
        prompt=table[:, 0].astype(np.int32),
        round=table[:, 1].astype(np.int32),
        features=table[:, 2:7].astype(np.float32),
        accepted=table[:, 7].astype(np.uint8),
        later_prompt=rest[:, 0].astype(np.int32),
        later_round=rest[:, 1].astype(np.int32),
        later_features=rest[:, 2:7].astype(np.float32),
    )


def draft(policy: WindowPolicy, tops: list[float]) -> int:
    """Tokens of a round whose tokens would have these probabilities."""
    drafted = [token(tops[0])]
    while len(drafted) < min(policy.max_window, len(tops)) and policy.keep_drafting(drafted):
        drafted.append(token(tops[len(drafted)]))
    return len(drafted)
