"""Scores, checked against direct counts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from testbed.decision_head.scores import accepted, auc, auc_interval, reliability, scores


def some(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(count), 2).astype(np.float32)  # ties
    return rng.random(count) < p, p


def test_auc_is_the_share_of_pairs_in_order() -> None:
    labels, p = some(0, 60)
    pairs = [(a > b) + 0.5 * (a == b) for a, b in itertools.product(p[labels], p[~labels])]
    assert auc(labels, p) == pytest.approx(np.mean(pairs))
    found = scores(labels, p)
    assert found["auc"] == auc(labels, p)
    assert found["brier"] == pytest.approx(np.mean((p.astype(float) - labels) ** 2))
    assert auc(np.ones(3, np.bool_), p[:3]) is None
    assert scores(np.ones(3, np.bool_), np.full(3, 0.5))["log_loss"] == pytest.approx(np.log(2))


def test_the_interval_covers_the_auc_of_much_more_data() -> None:
    truth = auc(*some(1, 200_000))
    assert truth is not None
    covered = 0
    for seed in range(20):
        labels, p = some(100 + seed, 300)
        interval = auc_interval(labels, p, np.arange(300) // 3, 0)
        assert interval is not None and interval[1] - interval[0] < 0.2
        covered += interval[0] <= truth <= interval[1]
    assert covered >= 17  # 19 expected


def test_prompts_and_not_mismatches_are_resampled() -> None:
    labels, p = some(2, 200)
    alone = auc_interval(labels, p, np.arange(200), 0)
    copies = [np.tile(column, 16) for column in (labels, p, np.arange(200))]
    together, apart = auc_interval(*copies, 0), auc_interval(copies[0], copies[1], np.arange(3200), 0)
    assert alone is not None and together is not None and apart is not None
    assert together[1] - together[0] == pytest.approx(alone[1] - alone[0])
    assert apart[1] - apart[0] < 0.5 * (together[1] - together[0])
    assert auc_interval(np.zeros(5, np.bool_), p[:5], np.arange(5), 0) is None


def test_reliability_counts_every_mismatch_once() -> None:
    labels, p = some(3, 500)
    p[:3] = (0.0, 1.0, 0.1)
    rows = reliability(labels, p)
    assert sum(row["count"] for row in rows) == 500
    for row in rows:
        last = row["to"] == 1
        mine = [i for i in range(500) if row["from"] <= round(float(p[i]), 2) < row["to"] or (last and p[i] == 1)]
        assert row["count"] == len(mine)
        assert row["predicted"] == pytest.approx(np.mean(p[mine])) and row["observed"] == np.mean(labels[mine])


def test_a_threshold_accepts_what_lies_below_it() -> None:
    labels, p = np.array([True, True, False, False]), np.array([0.2, 0.6, 0.2, 0.1])
    assert accepted(labels, p, 0.2) == {"harmless_accepted": 0.5, "critical_accepted": 0.0}
    assert accepted(labels, p, 0.5) == {"harmless_accepted": 1.0, "critical_accepted": 0.5}
    assert accepted(labels[:2], p[:2], 0.5) == {"harmless_accepted": None, "critical_accepted": 0.5}
