"""Tuning θ on calibration problems: the selection rule alone, then with the bundled pair."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from testbed.assets.fingerprints import model_fingerprint
from testbed.channel.csi import FEATURES
from testbed.decision_head.head import DecisionHead
from testbed.errors import BadInput
from testbed.experiments.head.config import Goal, TuneConfig
from testbed.experiments.head.tune import GRID, Trial, choose, load_problems, tune
from testbed.models.bundle import bundled
from tests.support.heads import random_head

POOR, GOOD = 0.4, 0.6


def trial(quality: float, threshold: float, lost: float, error: float = 0.5, limit: float = 1.0) -> Trial:
    return Trial(
        rate_mbps=20, rtt_ms=50, quality=quality, threshold=threshold, accuracy=0.9, lost=lost, error=error, aal=8,
        rounds=10, latency_s=1, limit=limit,
    )  # fmt: skip


def test_the_largest_threshold_that_loses_little_enough_with_its_error_is_taken() -> None:
    trials = [trial(POOR, t, lost) for t, lost in ((0.25, -0.2), (0.5, 0.4), (0.75, 0.6), (1.0, 3.0))]
    assert choose(trials, True, 1.0) == ((1.0, 0.5),)
    assert choose(trials, True, 0.0) == ((1.0, 0.75),)  # without its error
    assert choose(list(reversed(trials)), True, 1.0) == ((1.0, 0.5),)


def test_channels_of_one_quality_share_the_threshold_that_all_of_them_allow() -> None:
    """The order of the goals decided: one that tried a larger θ later took it."""
    first = [trial(POOR, t, lost, limit=2.0, error=0.0) for t, lost in ((0.25, 0.0), (0.5, 1.5), (0.75, 3.0))]
    second = [trial(POOR, t, lost, limit=1.0, error=0.0) for t, lost in ((0.25, 0.0), (0.5, 1.5))]
    for trials in (first + second, second + first):
        assert choose(trials, False, 1.0) == ((POOR, 0.25),) and choose(trials, True, 1.0) == ((1.0, 0.25),)


def test_luck_beyond_a_threshold_that_lost_too_much_does_not_count() -> None:
    trials = [trial(POOR, 0.25, 0.0), trial(POOR, 0.5, 2.0), trial(POOR, 0.75, 0.0)]
    assert choose(trials, True, 1.0) == ((1.0, 0.25),)


def test_one_threshold_meets_all_goals_where_the_head_sees_the_channel_and_each_its_own_where_not() -> None:
    trials = [trial(GOOD, 0.25, 0.0), trial(GOOD, 0.5, 2.0), trial(POOR, 0.25, 0.0), trial(POOR, 0.5, 0.1)]
    assert choose(trials, True, 1.0) == ((1.0, 0.25),)
    assert choose(trials, False, 1.0) == ((POOR, 0.5), (GOOD, 0.25))


def test_nothing_that_meets_the_goal_is_strict() -> None:
    assert choose([trial(POOR, 0.25, 5.0)], True, 1.0) == ((1.0, 0.0),)


@pytest.mark.parametrize(
    "given", [{"prompts": 1}, {"first": -1}, {"goals": ()}, {"goals": (Goal(20, 50, -1),)}, {"errors": -1}]
)
def test_what_cannot_be_tuned_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        TuneConfig(**given)


def fitting_head(**more: Any) -> DecisionHead:
    bundle = bundled()
    head = random_head(drafter_hidden=96, target_hidden=192, features=FEATURES)
    prints = {
        "target_fingerprint": model_fingerprint(bundle.require("target")),
        "drafter_fingerprint": model_fingerprint(bundle.require("drafter")),
    }
    return dataclasses.replace(head, info=msgspec.structs.replace(head.info, **(prints | more)))


def test_a_head_gets_the_threshold_that_its_answers_deserve() -> None:
    """Five problems solved by the target; either any loss is allowed, or none."""
    config = TuneConfig(prompts=5, window=16, engine="transformers", goals=(Goal(20, 50, 100.0),), errors=0.0)
    problems = load_problems(config, lambda _: None)
    try:
        with pytest.raises(BadInput, match="trained for target"):
            tune(fitting_head(target_fingerprint="0" * 16), config, problems, lambda _: None)
        head, trials = tune(fitting_head(), config, problems, lambda _: None)
    finally:
        problems.models.close()
    assert head.info.thresholds == ((1.0, 1.0),)
    assert tuple(t.threshold for t in trials) == GRID and 1 / 256 in GRID and sorted(set(GRID)) == list(GRID)
    own = sum(problems.right) / 5
    assert all(t.lost == pytest.approx(100 * (own - t.accuracy)) for t in trials)
    assert trials[-1].rounds < trials[0].rounds  # θ = 1 keeps every draft
    assert trials[-1].aal > trials[0].aal
