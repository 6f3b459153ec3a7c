"""Interpretations of the paper's baselines, checked against scalar recursions."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.optim.baselines import batch_by, fitting, of_size
from testbed.optim.figures import BATCHINGS, POINTS, draw, reduction
from testbed.optim.inference_cost import ServedPair, inference_s
from testbed.optim.interpretations import Interpretation, TaskLengths, inference_by
from testbed.optim.planner import plan_batches
from tests.optim.problems import paper_serving

INPUTS = np.array([40, 300, 10, 120, 77, 500, 260, 33, 410])
OUTPUTS = np.array([30, 5, 60, 12, 44, 28, 9, 57, 3])


def stepped(
    serving: ServedPair, window: int, runs: list[list[int]], outputs: np.ndarray, pipeline: bool = True
) -> float:
    """T_inf step by step with scalars (eqs. 13, 14, 17, 20-22); batches end after their longest output."""
    draft, verify, cost, alpha = serving.draft_model, serving.verify_model, serving.cost, serving.alpha
    per_step = (1 - alpha ** (window + 1)) / (1 - alpha)

    def flops(model: object, new: float, cached: float) -> float:
        j, h, f = (getattr(model, name) for name in ("layers", "hidden", "ffn"))
        return 4.0 * j * h * new * (2 * h + cached + new + f)

    needed = [math.ceil(max(outputs[k] for k in run) / per_step) for run in runs]
    total = 0.0
    for n in range(1, max(needed) + 1):
        drafted = done = 0.0
        for run, steps in zip(runs, needed, strict=True):
            if n > steps:
                continue
            longest, size = max(INPUTS[k] for k in run), len(run)
            cached = longest + (n - 1) * per_step - 1
            works = [flops(draft, 1, cached + i) for i in range(window)]
            if n == 1:
                works[0] = flops(draft, longest, 0)
            drafting = sum(cost.c1_draft * size * work + cost.c2_draft for work in works)
            work = flops(verify, longest + window, 0) if n == 1 else flops(verify, 1 + window, cached)
            verifying = cost.c1_verify * size * work + cost.c2_verify
            if pipeline:
                drafted += drafting
                done = max(drafted, done) + verifying
            else:
                done += drafting + verifying
        total += done
    return total


DRAWN = Interpretation(outputs="drawn")


def test_the_planners_batches_run_as_long_as_their_tasks() -> None:
    serving = paper_serving(output_tokens=60)
    plan = plan_batches(serving, INPUTS, "dp")
    runs = [list(batch) for batch in plan.batches]
    found = inference_by("dp", serving, TaskLengths(INPUTS, OUTPUTS), DRAWN)
    assert found.window == plan.window
    assert found.inference_s == pytest.approx(stepped(serving, plan.window, runs, OUTPUTS))
    apart = inference_by("no-pipeline", serving, TaskLengths(INPUTS, OUTPUTS), DRAWN)
    assert apart.inference_s == pytest.approx(stepped(serving, plan.window, runs, OUTPUTS, pipeline=False))
    assert found.inference_s < apart.inference_s


@pytest.mark.parametrize("order", ["arrival", "sorted"])
@pytest.mark.parametrize("name", ["static", "no-batching"])
def test_batches_of_one_size(name: str, order: str) -> None:
    serving = paper_serving(output_tokens=60)
    places = list(np.argsort(INPUTS)) if order == "sorted" and name == "static" else list(range(9))
    runs = [places[:8], places[8:]] if name == "static" else [[k] for k in places]
    least = min(stepped(serving, window, runs, OUTPUTS) for window in range(1, 11))
    found = inference_by(name, serving, TaskLengths(INPUTS, OUTPUTS), Interpretation(outputs="drawn", order=order))  # type: ignore[arg-type]
    assert found.inference_s == pytest.approx(least)
    fixed = Interpretation(outputs="drawn", order=order, baseline_window="fixed")  # type: ignore[arg-type]
    if name == "static":
        seven = inference_by(name, serving, TaskLengths(INPUTS, OUTPUTS), fixed)
        assert (seven.window, seven.inference_s) == (7, pytest.approx(stepped(serving, 7, runs, OUTPUTS)))


def test_max_batching_by_mean_lengths() -> None:
    draft = paper_serving().draft_model
    weights = 2 * draft.layers * (4 * draft.hidden**2 + 2 * draft.hidden * draft.ffn)
    token = 4 * draft.layers * draft.hidden
    serving = paper_serving(output_tokens=60, memory_bytes=weights + 2.5 * token * (500 + 60))
    users = TaskLengths(INPUTS, OUTPUTS)
    worst, mean = (Interpretation(outputs="drawn", max_size=size) for size in ("worst", "mean"))
    size = int(2.5 * 560 / (INPUTS.mean() + OUTPUTS.mean()))
    assert size == 6
    for interpretation, runs in (
        (worst, [[0, 1], [2, 3], [4, 5], [6, 7], [8]]),
        (mean, [[0, 1, 2], [3, 4], [5, 6], [7, 8]]),
    ):
        found = inference_by("max", serving, users, interpretation)
        assert found.inference_s == pytest.approx(
            min(stepped(serving, window, runs, OUTPUTS) for window in range(1, 11))
        )


def test_batches_of_every_baseline_fit_into_memory() -> None:
    """Eq. 24b by scalars, for the batches that each reading forms from mixed lengths."""
    draft = paper_serving().draft_model
    weights = 2 * draft.layers * (4 * draft.hidden**2 + 2 * draft.hidden * draft.ffn)
    token = 4 * draft.layers * draft.hidden
    rng = np.random.default_rng(3)
    for _ in range(50):
        inputs = rng.integers(1, 500, 12)
        serving = paper_serving(output_tokens=60, memory_bytes=weights + rng.uniform(1, 8) * token * (500 + 60))
        for size in (1, 3, 8, 12):
            runs = fitting(serving, inputs, size)
            assert [k for run in runs for k in run] == list(range(12))
            assert all(weights + len(run) * token * (max(inputs[run]) + 60) <= serving.memory_bytes for run in runs)
            assert all(len(run) <= size for run in runs)
            for before, after in pairwise(runs):  # none ends early that need not
                more = [*before, after[0]]
                held = weights + len(more) * token * (max(inputs[more]) + 60)
                assert len(before) == size or held > serving.memory_bytes


def test_a_batch_beyond_memory_is_refused_wherever_it_comes_from() -> None:
    serving = paper_serving(output_tokens=60, memory_bytes=7e9)
    with pytest.raises(BadInput, match=r"a batch of 99 tasks of up to 500 input tokens needs .* \(eq. 24b\)"):
        inference_s(serving, 4, np.array([1, 99]), np.array([40, 500]))


def test_the_number_of_batches_grows_until_the_latency_rises() -> None:
    serving = paper_serving(output_tokens=60)
    interpretation = Interpretation(heuristic="count", baseline_window="fixed")
    longest = np.full(9, 60)
    times = [stepped(serving, 7, of_size(9, -(-9 // count)), longest) for count in range(2, 10)]
    rises = next((i for i in range(1, len(times)) if times[i] > times[i - 1]), len(times))
    found = inference_by("heuristic", serving, TaskLengths(INPUTS, None), interpretation)
    assert found.inference_s == pytest.approx(times[rises - 1])


@pytest.mark.parametrize("name", ["dp", "no-pipeline", "fixed-window", "no-batching", *BATCHINGS])
def test_outputs_that_are_all_the_longest_change_nothing(name: str) -> None:
    serving = paper_serving(output_tokens=60)
    found = inference_by(name, serving, TaskLengths(INPUTS, np.full(9, 60)), DRAWN)
    plain = batch_by(name, serving, INPUTS)
    assert (found.window, found.inference_s) == (plain.window, pytest.approx(plain.inference_s))


def test_systems_without_an_interpretation_are_refused() -> None:
    with pytest.raises(BadInput, match="'autoregressive' is only defined"):
        inference_by("autoregressive", paper_serving(), TaskLengths(INPUTS, OUTPUTS), DRAWN)
    with pytest.raises(BadInput, match="no planner 'x'"):
        inference_by("x", paper_serving(), TaskLengths(INPUTS, None), Interpretation())


def test_outputs_are_drawn_independently_of_inputs() -> None:
    point = next(point for point in POINTS if point.figure == "8c")
    users = draw(point, 2)
    assert users.outputs.min() >= 1 and 900 < users.outputs.max() <= 1024
    assert users.lengths(Interpretation()).outputs is None
    assert users.lengths(DRAWN).outputs is users.outputs
    larger = reduction(point, range(2), interpretation=Interpretation(memory="binary"))
    assert larger.percents != reduction(point, range(2)).percents
    drawn = reduction(point, range(2), interpretation=DRAWN)
    assert drawn.percents != reduction(point, range(2)).percents
