"""Evaluates rejection predictors on unseen traces: WISP Tables 4, 10 and 11, and an empirical test of its Theorem 1."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.decision_head.scores import auc_interval
from testbed.errors import BadInput
from testbed.experiments.predictor.scores import fpr_at_recall, scores_of
from testbed.experiments.predictor.traces import TraceMeta, Traces
from testbed.intervals import SEED, Bootstrap
from testbed.ue.windows.predictor import FEATURES, RejectionPredictor

LOG = logging.getLogger(__name__)
CALLS = 1000
"""Number of calls of each predictor, timed individually (Appendix B)."""
RECALLS = (0.7, 0.8, 0.9, 0.95, 0.99)
"""Operating points of every predictor at which Theorem 1 is tested."""
POSITION = FEATURES.index("position")
ENDS = ("low", "high")


def check_traces(name: str, predictor: RejectionPredictor, meta: TraceMeta) -> None:
    """Refuse traces of a different pair than the predictor's; warns if it was trained on some of their prompts.

    Raises:
        BadInput: a different drafter or target.
    """
    predictor.check_drafter(meta.drafter_fingerprint)
    if meta.target_fingerprint != predictor.info.target_fingerprint:
        raise BadInput(
            f"the predictor was trained for target {predictor.info.target_fingerprint}, the traces are of "
            f"{meta.target_fingerprint}; use traces of the same pair"
        )
    if seen := seen_prompts(predictor, meta):
        LOG.warning("%s was trained on %d of the %d prompts: its figures are no test of it", name, seen, meta.prompts)


def seen_prompts(predictor: RejectionPredictor, meta: TraceMeta) -> int:
    """Number of the traces' prompts on which a predictor was trained, as far as it says."""
    dataset, first, count = (predictor.info.trained.get(name) for name in ("dataset", "first", "prompts"))
    if dataset != meta.dataset or not isinstance(first, int) or not isinstance(count, int):
        return 0
    return max(0, min(first + count, meta.first + meta.prompts) - max(first, meta.first))


def evaluate(predictors: Mapping[str, RejectionPredictor], traces: Traces) -> list[dict[str, Any]]:
    """One row per predictor: scores at its own threshold with intervals, and latency of a call on this machine.

    Raises:
        BadInput: the traces contain only accepted or only rejected tokens.
    """
    if len(np.unique(traces.accepted)) < 2:
        raise BadInput("the traces contain accepted or rejected tokens only; collect more prompts")
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
                **intervals(traces, probabilities, info.threshold),
                "fpr_at_recall": fpr_at_recall(traces.accepted, probabilities, info.recall),
                "fpr_at_recall_80": fpr_at_recall(traces.accepted, probabilities, 0.8),
                "rejected": int(np.sum(traces.accepted == 0)),
                "accepted": int(np.sum(traces.accepted)),
                **latency(predictor, traces),
            }
        )
    return rows


def intervals(traces: Traces, probabilities: NDArray[np.float64], threshold: float) -> dict[str, float | None]:
    """95 % intervals of `auc`, `rec1` and `fpr` by bootstrap over prompts, since tokens of one answer are dependent."""
    accepted, said = traces.accepted == 1, probabilities >= threshold
    columns = {"accepted": accepted, "rejected": ~accepted, "tp": said & accepted, "fp": said & ~accepted}
    drawn = Bootstrap(columns, groups=traces.prompt)
    found = {
        "auc": auc_interval(accepted, probabilities, traces.prompt, SEED) or (None, None),
        "rec1": drawn.ratio("tp", "accepted", most=1.0).ends,
        "fpr": drawn.ratio("fp", "rejected", most=1.0).ends,
    }
    return {f"{name}_{end}": value for name, ends in found.items() for end, value in zip(ENDS, ends, strict=True)}


def latency(predictor: RejectionPredictor, traces: Traces) -> dict[str, float]:
    """Statistics of the latency of one call in microseconds, over `CALLS` calls (Table 11)."""
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
    """Rounds with a fixed window K, to be replayed under stop rules.

    Attributes:
        features: [rounds, K, 5], 0 beyond the end of a round.
        drafted: [rounds] number of drafted tokens.
        kept: [rounds] number L of tokens before the first rejection.
    """

    features: NDArray[np.float32]
    drafted: NDArray[np.int64]
    kept: NDArray[np.int64]


def rounds_of(traces: Traces) -> Rounds:
    """Reassemble rounds from labelled and later tokens.

    Raises:
        BadInput: a round's positions are not 1 to its number of tokens.
    """
    prompt = np.concatenate([traces.prompt, traces.later_prompt])
    number = np.concatenate([traces.round, traces.later_round])
    stats = np.concatenate([traces.features, traces.later_features])
    kept = np.concatenate([traces.accepted, np.zeros(len(traces.later_prompt), np.uint8)])
    keys, place = np.unique(np.stack([prompt, number]), axis=1, return_inverse=True)
    place, count = place.reshape(-1), keys.shape[1]
    position, drafted = stats[:, POSITION].astype(np.int64), np.bincount(place, minlength=count)
    whole = np.all((position >= 1) & (position <= drafted[place]))
    if not whole or np.unique(np.stack([place, position]), axis=1).shape[1] < len(place):
        raise BadInput("the traces are damaged: positions of a round's tokens are missing, or occur twice")
    table = np.zeros((count, int(position.max()), len(FEATURES)), np.float32)
    table[place, position - 1] = stats
    return Rounds(table, drafted, np.bincount(place, kept, count).astype(np.int64))


def waste(rounds: Rounds, probabilities: NDArray[np.float64], threshold: float) -> dict[str, Any]:
    """Effect of stopping each round at the first predicted rejection (eqs. 25, 26, 30).

    Args:
        probabilities: acceptance probabilities [rounds, K].

    Returns:
        `wasted`: mean W without the token predicted rejected, as in eq. 25; `wasted_sent`: with that token;
        `false_alarm`: fraction of first rejections predicted accepted; `by_position`: that fraction by position of the
        first rejection.
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
    """Test Theorem 1 (a lower false-alarm rate wastes less) on every predictor at every recall in `RECALLS`.

    The theorem's proof compares upper bounds, so the order is not guaranteed. `pairs` counts pairs of operating points
    with different rates, `ordered` those in which the lower rate wastes no more. `dominated` counts the pairs that meet
    the proof's premise, no higher rate at any position of the first rejection (eq. 32), and `dominated_ordered` those
    of them that satisfy the theorem's conclusion.
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
