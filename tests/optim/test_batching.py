"""Planners, checked against a scalar Algorithm 1, brute force, and an event-driven pipeline simulation."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.optim.inference_cost import IntArray, ServedPair, inference_s
from testbed.optim.planner import Batching, plan_batches
from testbed.optim.search import BatchOrder, every_run, johnson
from testbed.optim.solvers import SOLVERS
from testbed.optim.stages import Stages
from tests.optim.problems import draw, instance, paper_serving
from tests.support.batching import algorithm_1, brute_force, partitions, runs

SEEDS = st.integers(0, 2**32 - 1)


def check(plan: Batching, serving: ServedPair, inputs: IntArray) -> None:
    """Check that every task is in one batch, batches fit, and the latency is theirs."""
    one = instance(serving, inputs)
    assert sorted(itertools.chain(*plan.batches)) == list(range(len(inputs)))
    assert all(plan.batches)
    assert all(one.fits(batch) for batch in plan.batches)
    assert plan.inference_s == pytest.approx(one.latency_s(plan.batches, plan.window), rel=1e-9)


# ---------------------------------------------------------------- plans


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.integers(1, 14))
def test_plans_are_valid_and_best_is_never_slower_than_algorithm_1(seed: int, tasks: int) -> None:
    serving, inputs = draw(np.random.default_rng(seed), tasks)
    paper, ours = (plan_batches(serving, inputs, name) for name in ("dp", "best"))
    for plan in (paper, ours):
        check(plan, serving, inputs)
    assert ours.inference_s <= paper.inference_s * (1 + 1e-12)


@pytest.mark.parametrize("tasks", [1, 2, 9, 25])
def test_the_paper_planner_is_algorithm_1(tasks: int) -> None:
    rng = np.random.default_rng(tasks)
    for _ in range(8):
        serving, inputs = draw(rng, tasks, distinct=True)  # equal inputs would give ties, decided by rounding
        window = int(rng.integers(1, 5))
        batches, latency_s = algorithm_1(instance(serving, inputs), window)
        plan = plan_batches(serving, inputs, "dp", window)
        assert plan.inference_s == pytest.approx(latency_s, rel=1e-9)
        assert [list(batch) for batch in plan.batches] == batches


def test_algorithm_1_is_not_exact_and_best_is_near_brute_force() -> None:
    """On 40 random problems of 4 and 5 tasks, against all 75 and 541 batchings in all orders."""
    rng = np.random.default_rng(7)
    gaps: dict[str, list[float]] = {"dp": [], "best": []}
    for k in range(40):
        serving, inputs = draw(rng, 4 + k % 2, most_output=12)
        window = int(rng.integers(1, 5))
        least_s = brute_force(instance(serving, inputs), window)
        for name, found in gaps.items():
            found.append(plan_batches(serving, inputs, name, window).inference_s / least_s - 1)
    assert min(min(found) for found in gaps.values()) > -1e-9
    assert max(gaps["best"]) < 1e-9
    assert max(gaps["dp"]) > 0.05
    assert np.mean(np.array(gaps["dp"]) > 1e-9) > 0.4


def test_best_is_near_all_runs_of_seven_tasks_in_all_orders() -> None:
    rng = np.random.default_rng(11)
    for _ in range(2):
        serving, inputs = draw(rng, 7, most_output=8)
        least_s = brute_force(instance(serving, inputs), 2, contiguous=True)
        assert plan_batches(serving, inputs, "best", 2).inference_s <= least_s * 1.002


def test_runs_of_sorted_tasks_are_enough() -> None:
    """Assumption of the planner: no other batches are faster than the best runs."""
    rng = np.random.default_rng(5)
    for _ in range(15):
        serving, inputs = draw(rng, 4, most_output=8)
        one = instance(serving, inputs)
        assert brute_force(one, 2, contiguous=True) == pytest.approx(brute_force(one, 2), rel=1e-12)


def test_the_window_is_the_best_of_all() -> None:
    rng = np.random.default_rng(3)
    seen = set()
    for _ in range(12):
        serving, inputs = draw(rng, 6)
        for name in SOLVERS:
            each = [plan_batches(serving, inputs, name, window).inference_s for window in range(1, 5)]
            plan = plan_batches(serving, inputs, name)
            assert plan.inference_s == pytest.approx(min(each), rel=1e-9)
            assert each[plan.window - 1] == pytest.approx(min(each), rel=1e-9)
            seen.add(plan.window)
    assert len(seen) > 1


@pytest.mark.parametrize("output_tokens", [1, 2, 3])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_few_steps(output_tokens: int, alpha: float) -> None:
    inputs = np.random.default_rng(0).integers(1, 513, 20)
    for memory_bytes in (2.4e9, 16e9, 1e15):
        serving = paper_serving(output_tokens, alpha, memory_bytes)
        paper, ours = (plan_batches(serving, inputs, name) for name in ("dp", "best"))
        check(paper, serving, inputs)
        check(ours, serving, inputs)
        assert ours.inference_s <= paper.inference_s * (1 + 1e-12)


def test_best_is_strictly_faster_at_the_size_of_the_paper() -> None:
    inputs = np.random.default_rng(0).integers(1, 513, 100)
    serving = paper_serving()
    paper, ours = (plan_batches(serving, inputs, name) for name in ("dp", "best"))
    for plan in (paper, ours):
        check(plan, serving, inputs)
    assert ours.inference_s < 0.995 * paper.inference_s
    assert plan_batches(serving, inputs, "best") == ours


# ---------------------------------------------------------------- parts


def test_lines_are_the_equations() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        serving, inputs = draw(rng, 12)
        serving = msgspec.structs.replace(serving, memory_bytes=1e15)  # the batches need not be a plan
        inputs = np.sort(inputs)
        stages = Stages(serving, inputs, 3)
        boundaries = np.unique(np.concatenate([[0, 12], rng.integers(1, 12, 4)]))
        order = rng.permutation(len(boundaries) - 1)
        starts, ends = boundaries[:-1][order], boundaries[1:][order]
        expected = inference_s(serving, 3, ends - starts, inputs[ends - 1])
        assert stages.latency_s(starts, ends) == pytest.approx(expected, rel=1e-10)
        assert stages.least_s(*stages.times(starts, ends)) <= expected * (1 + 1e-12)


def test_no_plan_is_below_the_bound() -> None:
    rng = np.random.default_rng(4)
    tight = []
    for _ in range(25):
        serving, inputs = draw(rng, 4, most_output=10)
        stages = Stages(serving, np.sort(inputs), 2)
        least_s = brute_force(instance(serving, inputs), 2)
        assert stages.bound_s() <= least_s * (1 + 1e-9)
        tight.append(stages.bound_s() / least_s)
    assert np.median(tight) > 0.7


def test_all_runs_are_enumerated() -> None:
    stages = Stages(paper_serving(), np.array([3, 5, 5, 80, 90]), 1)
    found = {tuple(np.unique(row).tolist()) for row in every_run(stages)}
    expected = {(0, *itertools.accumulate(map(len, batches))) for batches in runs(range(5))}
    assert found == expected
    assert len(list(partitions(range(5)))) == 52  # the fifth Bell number: the oracle is complete


def test_orders_by_johnson_are_the_best_of_a_single_step() -> None:
    rng = np.random.default_rng(8)
    for _ in range(10):
        serving, inputs = draw(rng, 5)
        serving = msgspec.structs.replace(serving, max_output_tokens=1)
        stages = Stages(serving, np.sort(inputs), 4)
        single = instance(serving, np.sort(inputs))
        rows = np.arange(6)[None]
        starts, ends = johnson(stages, rows[:, :-1], rows[:, 1:])
        ours = min(BatchOrder(stages, s, e).latency_s for s, e in zip(starts, ends, strict=True))
        least = min(single.latency_s([[k] for k in order], 4) for order in itertools.permutations(range(5)))
        assert ours == pytest.approx(least)


# ---------------------------------------------------------------- refusals


def test_invalid_problems_are_refused() -> None:
    serving = paper_serving()
    with pytest.raises(BadInput, match="no tasks; give at least one"):
        plan_batches(serving, np.array([], np.int64))
    with pytest.raises(BadInput, match="a task needs 1 input token or more, not 0"):
        plan_batches(serving, np.array([4, 0]))
    with pytest.raises(BadInput, match="no planner 'greedy'; known: best, dp"):
        plan_batches(serving, np.array([4]), "greedy")
    for window in (0, 11):
        with pytest.raises(BadInput, match=f"window {window} is out of range: 1 to max_window, which is 10"):
            plan_batches(serving, np.array([4]), "dp", window)
    with pytest.raises(BadInput, match=r"needs .* bytes with the draft model"):
        plan_batches(paper_serving(memory_bytes=1.9e9), np.array([4, 2048]))
