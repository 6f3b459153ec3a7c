"""Accuracy against the target's own outputs, and intervals against scipy's bootstrap and the binomial distribution."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.marks import by_answer
from testbed.experiments.results.quality import quality
from testbed.intervals import mean_interval

EXAMPLES = [Example("a", "#### 1"), Example("b", "#### 2"), Example("c", "#### 3"), Example("d")]


def test_only_questions_with_an_answer_count_and_losses_are_paired() -> None:
    texts = {0: "#### 1", 1: "#### 9", 2: "#### 3", 3: "#### 4"}
    own = {0: "#### 1", 1: "#### 2", 2: "#### 8", 3: "nothing"}
    found = quality(texts, EXAMPLES, own)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["accuracy_lost"] == 0  # one lost, one won
    assert found["accuracy_lost_low"] < 0 < found["accuracy_lost_high"]


def test_what_is_not_known_is_none() -> None:
    assert quality({3: "#### 4"}, EXAMPLES, {3: "#### 4"})["accuracy"] is None
    found = quality({0: "#### 1"}, EXAMPLES, None)
    assert found["accuracy"] == 1.0 and found["accuracy_lost"] is None
    assert quality({0: "#### 1", 1: ""}, EXAMPLES, {0: "#### 1"})["accuracy_lost"] is None


def test_outputs_without_an_answer_are_counted_and_the_scorer_is_the_runs() -> None:
    texts = {0: "#### 1", 1: "cut off", 2: "nothing", 3: "#### 4"}
    found = quality(texts, EXAMPLES)
    assert (found["accuracy"], found["unparsed"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    words = [Example("a", "It is GREEN"), Example("b", "red"), Example("c", "50")]
    mine = quality(
        {0: "green", 1: "", 2: "50"}, words, None, by_answer(lambda t: t.split()[-1].lower() if t.split() else None)
    )
    assert (mine["accuracy"], mine["unparsed"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))


def test_the_interval_is_that_of_a_bootstrap() -> None:
    values = np.random.default_rng(1).choice([-1.0, 0.0, 1.0], 400, p=[0.02, 0.93, 0.05])
    low, high = mean_interval(values)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=5000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.0026)


def test_the_interval_of_shares_is_the_binomial_one() -> None:
    values = np.array([1.0] * 30 + [0.0] * 970)
    low, high = mean_interval(values, 0.9)
    theirs = scipy.stats.binom.ppf([0.05, 0.95], 1000, 0.03) / 1000
    assert (low, high) == pytest.approx(tuple(theirs), abs=0.0011)


@pytest.mark.parametrize(("values", "level"), [([], 0.95), ([1.0], 0.0), ([1.0], 1.0)])
def test_what_has_no_interval_is_refused(values: list[float], level: float) -> None:
    with pytest.raises(BadInput, match="an interval needs"):
        mean_interval(np.array(values), level)
