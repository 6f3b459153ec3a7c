"""Evaluation of heads with known behaviour."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from testbed.channel.csi import FEATURES
from testbed.decision_head.evaluate import CHANNELS, evaluate
from testbed.decision_head.head import DecisionHead, HeadInfo
from testbed.decision_head.scores import auc
from testbed.decision_head.settings import Relabelling
from tests.support.mismatches import DRAFTER_HIDDEN, TARGET_HIDDEN, VOCAB, some_mismatches


def knowing_head(slope: float, features: tuple[str, ...] = FEATURES, bits: int = 16) -> DecisionHead:
    """Head with p_rej = σ(2·h_d[0] + slope·log10(uplink) − 1), as ReLU(z) − ReLU(−z)."""
    info = HeadInfo(
        drafter_hidden=DRAFTER_HIDDEN, target_hidden=TARGET_HIDDEN, width=2, features=features,
        drafter_fingerprint="d", target_fingerprint="e", drafter_quantisation="F32", hidden_bits=bits,
    )  # fmt: skip
    line = np.zeros(info.inputs, np.float32)
    line[0] = 2
    if features:
        line[DRAFTER_HIDDEN + TARGET_HIDDEN] = slope
    return DecisionHead(
        info,
        w1=np.stack([line, -line]),
        b1=np.float32([-1, 1]),
        w2=np.float32([1, -1]),
        b2=np.zeros(1, np.float32),
        mean=np.zeros(info.inputs, np.float32),
        scale=np.ones(info.inputs, np.float32),
    )


def test_scores_are_those_of_the_perfect_channel_against_base_labels() -> None:
    found, critical, _ = some_mismatches(150, 0)
    done = evaluate(knowing_head(0.5), found, critical, Relabelling())
    p = 1 / (1 + np.exp(-(2 * found.drafter_hidden[:, 0].astype(float) + 1.5 - 1)))
    np.testing.assert_allclose(done.p["perfect"], p, atol=1e-6)
    document = done.document
    assert document["auc"] == auc(critical, p)
    assert document["brier"] == pytest.approx(np.mean((p - critical) ** 2))
    assert document["mismatches"] == len(found) and document["prompts"] == 150
    assert document["critical"] == critical.mean()
    low, high = document["auc_interval"]
    assert low < document["auc"] < high
    assert document["digits"] is None
    assert msgspec.json.decode(msgspec.json.encode(document)) == document


def test_operating_points_follow_threshold_and_channel() -> None:
    found, critical, _ = some_mismatches(150, 1)
    document = evaluate(knowing_head(1.0), found, critical, Relabelling()).document
    curves = [[row for row in document["operating"] if row["channel"] == name] for name in CHANNELS]
    for rows in curves:
        for kind in ("harmless_accepted", "critical_accepted"):
            shares = [row[kind] for row in rows]
            assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    good, _, poor = curves
    assert good[0]["quality"] == 1 > poor[0]["quality"]
    half = next(i for i, row in enumerate(good) if row["threshold"] == 0.5)
    assert poor[half]["harmless_accepted"] > good[half]["harmless_accepted"] + 0.1


def test_bands_hold_all_instances_and_show_the_budget() -> None:
    found, critical, _ = some_mismatches(200, 2)
    document = evaluate(knowing_head(0.0), found, critical, Relabelling(draws=5, least_share=0.1)).document
    bands = document["bands"]
    assert sum(band["instances"] for band in bands) == document["relabelled"]["instances"] == 5 * len(found)
    repaired = [band["repaired"] for band in bands]
    assert repaired[0] < repaired[-1] == pytest.approx(critical.mean(), abs=0.05)
    total = sum(band["repaired"] * band["instances"] for band in bands) / (5 * len(found))
    assert document["relabelled"]["repaired"] == pytest.approx(total)
    seen = [band["predicted"] for band in bands if band["instances"] > 500]  # of a head that ignores the channel
    assert len(seen) > 1 and max(seen) - min(seen) < 0.06


def test_drafter_states_are_seen_as_they_arrive() -> None:
    found, critical, _ = some_mismatches(50, 3)
    whole, coarse = (
        evaluate(knowing_head(0.0, bits=bits), found, critical, Relabelling()).p["perfect"] for bits in (16, 4)
    )
    assert 1e-3 < np.abs(whole - coarse).max() < 0.2


def test_the_digit_rule_looks_at_both_tokens() -> None:
    found, critical, _ = some_mismatches(150, 4)
    digit_free = np.arange(VOCAB - 5) % 3 > 0  # the last five ids are not tokens
    done = evaluate(knowing_head(0.0, ()), found, critical, Relabelling(), digit_free)
    wanted = [
        any(i >= VOCAB - 5 or i % 3 == 0 for i in pair) for pair in zip(found.draft_id, found.target_id, strict=True)
    ]
    assert done.digits is not None and done.digits.tolist() == wanted
    rule = done.document["digits"]
    assert rule["critical_accepted"] == pytest.approx(1 - np.mean(np.array(wanted)[critical]))
    hits, false = np.mean(np.array(wanted)[critical]), np.mean(np.array(wanted)[~critical])
    assert rule["auc"] == pytest.approx((1 + hits - false) / 2)


def test_labels_of_one_kind_have_no_auc() -> None:
    found, critical, _ = some_mismatches(20, 5)
    document = evaluate(knowing_head(0.0), found, np.zeros_like(critical), Relabelling()).document
    assert document["auc"] is None and document["auc_interval"] is None
    assert document["operating"][3]["critical_accepted"] is None
