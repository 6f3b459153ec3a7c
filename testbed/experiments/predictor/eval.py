"""Rejection predictors on traces that they never saw: WISP's Tables 4, 10 and 11, and its Theorem 1 put to the test."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.experiments.predictor.scores import fpr_at_recall, scores_of
from testbed.experiments.predictor.traces import TraceMeta, Traces
from testbed.ue.windows.predictor import FEATURES, RejectionPredictor

CALLS = 1000
"""Of each predictor, timed one by one (Appendix B)."""
RECALLS = (0.7, 0.8, 0.9, 0.95, 0.99)
"""Operating points of every predictor at which Theorem 1 is looked at."""
POSITION = FEATURES.index("position")


def check_traces(predictor: RejectionPredictor, meta: TraceMeta) -> None:
    """Refuse traces of another pair than the predictor's.

    Raises:
        BadInput: another drafter, or another target.
    """
    predictor.check_drafter(meta.drafter_fingerprint)
    if meta.target_fingerprint != predictor.info.target_fingerprint:
        raise BadInput(
            f"the predictor was trained for target {predictor.info.target_fingerprint}, the traces are of "
            f"{meta.target_fingerprint}; collect traces of its own pair"
        )


def evaluate(predictors: Mapping[str, RejectionPredictor], traces: Traces) -> list[dict[str, Any]]:
    """One row a predictor: how it does at its own threshold, and what a call takes here.

    Raises:
        BadInput: traces of accepted or of rejected tokens alone.
    """
    if len(np.unique(traces.accepted)) < 2:
        raise BadInput("the traces hold accepted or rejected tokens only; collect more prompts")
    rows = []
    for name, predictor in predictors.items():
        info = predictor.info
        probabilities = predictor.probabilities(traces.features)
        rows.append(
            {
                "model": name,
                "recall_target": info.recall,
                "threshold": info.threshold,
                **scores_of(traces.accepted, probabilities, info.threshold).numbers(),
                "fpr_at_recall": fpr_at_recall(traces.accepted, probabilities, info.recall),
                "fpr_at_recall_80": fpr_at_recall(traces.accepted, probabilities, 0.8),
                "rejected": int(np.sum(traces.accepted == 0)),
                "accepted": int(np.sum(traces.accepted)),
                **latency(predictor, traces),
            }
        )
    return rows


def latency(predictor: RejectionPredictor, traces: Traces) -> dict[str, float]:
    """Microseconds of one call, over `CALLS` calls (Table 11)."""
    samples = [tuple(map(float, x)) for x in traces.features[:: max(1, len(traces) // CALLS)][:CALLS]]
    taken = []
    for x in [*samples[:50], *samples]:
        start_ns = time.perf_counter_ns()
        predictor.probability(x)
        taken.append((time.perf_counter_ns() - start_ns) / 1e3)
    us = np.array(taken[min(50, len(samples)) :])
    named = {"mean": us.mean(), "p50": np.median(us), "std": us.std(), "min": us.min(), "max": us.max()}
    named |= {f"p{q}": np.percentile(us, q) for q in (95, 99)}
    return {f"latency_us_{name}": float(value) for name, value in named.items()}


# ---------------------------------------------------------------- Theorem 1


@dataclass(frozen=True)
class Rounds:
    """Rounds of a fixed window K, replayed under stop rules.

    Attributes:
        features: [rounds, K, 5], 0 beyond a round's end.
        drafted: [rounds] tokens of each.
        kept: [rounds] L, tokens before the first rejection.
    """

    features: NDArray[np.float32]
    drafted: NDArray[np.int64]
    kept: NDArray[np.int64]


def rounds_of(traces: Traces) -> Rounds:
    """Put labelled and later tokens together again, round by round."""
    prompt = np.concatenate([traces.prompt, traces.later_prompt])
    number = np.concatenate([traces.round, traces.later_round])
    stats = np.concatenate([traces.features, traces.later_features])
    kept = np.concatenate([traces.accepted, np.zeros(len(traces.later_prompt), np.uint8)])
    keys, place = np.unique(np.stack([prompt, number]), axis=1, return_inverse=True)
    place, count = place.reshape(-1), keys.shape[1]
    position = stats[:, POSITION].astype(np.int64)
    table = np.zeros((count, int(position.max()), len(FEATURES)), np.float32)
    table[place, position - 1] = stats
    return Rounds(table, np.bincount(place, minlength=count), np.bincount(place, kept, count).astype(np.int64))


def waste(rounds: Rounds, probabilities: NDArray[np.float64], threshold: float) -> dict[str, Any]:
    """What stopping at the first predicted rejection would have done to each round (eqs. 25, 26, 30).

    Args:
        probabilities: [rounds, K] of acceptance.

    Returns:
        `wasted`: mean W with the doubted token left out, as in eq. 25; `wasted_sent`: with it sent; `false_alarm`:
        share of first rejections predicted accepted; `by_position`: that share for each place of the first rejection.
    """
    window = probabilities.shape[1]
    doubted = probabilities < threshold
    before = np.where(doubted.any(axis=1), doubted.argmax(axis=1), window)
    drafted = np.minimum(before, rounds.drafted)
    sent = np.minimum(before + 1, rounds.drafted)
    rejected = np.flatnonzero(rounds.kept < rounds.drafted)
    places = rounds.kept[rejected]
    missed = ~doubted[rejected, places]
    counts = np.bincount(places, minlength=window)
    return {
        "wasted": float(np.maximum(0, drafted - rounds.kept).mean()),
        "wasted_sent": float(np.maximum(0, sent - rounds.kept).mean()),
        "false_alarm": float(missed.mean()),
        "by_position": np.bincount(places, missed, window) / np.maximum(counts, 1),
    }


def theorem(predictors: Mapping[str, RejectionPredictor], traces: Traces) -> dict[str, Any]:
    """Theorem 1 over every predictor at every recall of `RECALLS`: does a lower false-alarm rate waste less?

    Its proof compares upper bounds, so that nothing forces the order. `pairs` of operating points are counted where
    one has the lower rate, `ordered` those where it wastes no more. `dominated` are the pairs that meet the proof's
    own premise, no higher rate at any place of the first rejection (eq. 32), `dominated_ordered` those of them where
    the theorem's conclusion holds.
    """
    rounds = rounds_of(traces)
    points = []
    for name, predictor in predictors.items():
        flat = predictor.probabilities(rounds.features.reshape(-1, len(FEATURES)))
        probabilities = flat.reshape(rounds.features.shape[:2])
        of_accepted = np.sort(predictor.probabilities(traces.features)[traces.accepted == 1])
        for recall in RECALLS:
            threshold = float(of_accepted[int((1 - recall) * len(of_accepted))])
            points.append({"model": name, "recall": recall, **waste(rounds, probabilities, threshold)})
    counts = {"pairs": 0, "ordered": 0, "dominated": 0, "dominated_ordered": 0}
    broken = []
    for one, other in itertools.permutations(points, 2):
        lower, ordered = one["false_alarm"] < other["false_alarm"], one["wasted"] <= other["wasted"]
        dominates = lower and bool(np.all(one["by_position"] <= other["by_position"]))
        counts["pairs"] += lower
        counts["ordered"] += lower and ordered
        counts["dominated"] += dominates
        counts["dominated_ordered"] += dominates and ordered
        if dominates and not ordered:
            broken.append([f"{p['model']} at {p['recall']:g}" for p in (one, other)])
    for point in points:
        del point["by_position"]
    return {**counts, "counterexamples": broken, "points": points}
