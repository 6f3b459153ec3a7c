"""Fit of c1 and c2: recovery of known coefficients, and FLOPs counted from the layers' matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.optim.cost_fit import NODES, MeasuredStep, Node, Phase, cost_document, fit_steps, flops
from testbed.optim.inference_cost import Cost, Model

MODEL = Model(layers=3, hidden=96, ffn=256)


def counted(new: int, cached: int) -> float:
    """FLOPs of a pass, two for each multiplication: four projections, scores and values over the context, two halves of
    the feed-forward network.
    """
    projections = 4 * 2 * new * MODEL.hidden * MODEL.hidden
    attention = 2 * 2 * new * (cached + new) * MODEL.hidden
    feed_forward = 2 * 2 * new * MODEL.hidden * MODEL.ffn
    return MODEL.layers * (projections + attention + feed_forward)


def steps(node: Node, c1: float, c2: float, noise: float = 0.0, per_task: float = 0.0) -> list[MeasuredStep]:
    """Steps whose times follow eq. 17, with an additional time per task."""
    rng, found = np.random.default_rng(1), []
    for batch in (1, 2, 4, 8, 16):
        for prefix in (32, 64, 256, 1024):
            for window in (1, 3, 8):
                if node == "draft":
                    works = [counted(1, prefix - 1 + i) for i in range(window)]
                else:
                    works = [counted(window + 1, prefix - 1)]
                seconds = sum(c1 * batch * work + c2 + per_task * batch for work in works)
                seconds *= 1 + noise * rng.standard_normal()
                found.append(MeasuredStep(node, "decode", batch, prefix, window, len(works), seconds))
            work = counted(prefix, 0) if node == "draft" else counted(prefix + 3, 0)
            seconds = c1 * batch * work + c2 + per_task * batch
            found.append(MeasuredStep(node, "prompt", batch, prefix, 1 if node == "draft" else 3, 1, seconds))
    return found


@pytest.mark.parametrize("node", NODES)
def test_exact_times_give_their_coefficients(node: Node) -> None:
    found = fit_steps(MODEL, steps(node, 3e-11, 2e-4), resamples=50)
    assert (found.c1, found.c2) == (pytest.approx(3e-11), pytest.approx(2e-4))
    assert found.r2 == pytest.approx(1) and found.mape == pytest.approx(0, abs=1e-9)
    assert not found.clamped and found.steps == 80
    for name in ("decode", "prompt"):
        assert (found.phases[name]["c1"], found.phases[name]["c2"]) == (pytest.approx(3e-11), pytest.approx(2e-4))


def test_intervals_hold_the_truth_and_narrow() -> None:
    noisy, noisier = (fit_steps(MODEL, steps("verify", 3e-11, 2e-4, noise)) for noise in (0.02, 0.3))
    for name, truth in (("c1", 3e-11), ("c2", 2e-4)):
        low, high = noisy.intervals[name]
        assert low < truth < high
        assert high - low < noisier.intervals[name][1] - noisier.intervals[name][0]
    assert noisier.r2 < noisy.r2 < 1
    again = fit_steps(MODEL, steps("verify", 3e-11, 2e-4, 0.02))
    assert again == noisy
    assert fit_steps(MODEL, steps("verify", 3e-11, 2e-4, 0.02), seed=1).intervals != noisy.intervals


def test_a_term_that_is_missing_shows() -> None:
    found = fit_steps(
        MODEL, [s for s in steps("draft", 3e-11, 2e-4, per_task=1e-3) if s.phase == "decode"], resamples=9
    )
    assert found.terms["tasks"] == pytest.approx(1)
    assert found.r2 < 0.999
    assert all(value >= found.r2 - 1e-12 for value in found.terms.values())


@pytest.mark.parametrize(("c1", "c2"), [(3e-11, -1e-4), (-1e-14, 1e-1)])
def test_no_coefficient_is_negative(c1: float, c2: float) -> None:
    decoding = [s for s in steps("verify", c1, c2) if s.seconds > 0]
    found = fit_steps(MODEL, decoding, resamples=20)
    assert found.clamped and min(found.c1, found.c2) == 0 < max(found.c1, found.c2)
    assert min(low for low, _ in found.intervals.values()) >= 0


def test_flops_of_a_draft_step_are_the_mean_of_its_passes() -> None:
    step = MeasuredStep("draft", "decode", 4, 100, 5, 5, 1.0)
    assert flops(MODEL, step) == pytest.approx(math.fsum(counted(1, 99 + i) for i in range(5)) / 5)


@pytest.mark.parametrize("phase", ["decode", "prompt", None])
def test_a_cost_document_is_what_a_plan_takes(phase: Phase | None) -> None:
    fits = {
        node: fit_steps(MODEL, steps(node, 3e-11, c2), resamples=9)
        for node, c2 in zip(NODES, (2e-4, 7e-4), strict=True)
    }
    cost = Cost(**cost_document(fits, phase))
    assert (cost.c2_draft, cost.c2_verify) == (pytest.approx(2e-4), pytest.approx(7e-4))
    bare = {
        node: fit_steps(MODEL, [s for s in steps(node, 3e-11, 2e-4) if s.phase == "prompt"], resamples=9)
        for node in NODES
    }
    assert cost_document(bare, "decode")["c2_draft"] == bare["draft"].c2


def test_impossible_fits_are_refused() -> None:
    with pytest.raises(BadInput, match="3 steps or more, not 2"):
        fit_steps(MODEL, steps("draft", 1e-11, 1e-4)[:2])
    with pytest.raises(BadInput, match="at least two different amounts of work"):
        fit_steps(MODEL, steps("draft", 1e-11, 1e-4)[:1] * 4)
