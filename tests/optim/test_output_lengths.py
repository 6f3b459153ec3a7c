"""Plans with known output lengths and with drafting on UEs, beside a pipeline simulated event by event."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.optim.output_lengths import TIMED, TimedTasks, plan_by_lengths
from testbed.optim.planner import plan_batches
from testbed.optim.tasks import Problem, Task, plan
from tests.optim.problems import TABLE_2, draw, instance, paper_serving
from tests.support.batching import Instance, play

Batches = Sequence[Sequence[int]]


def simulated_s(one: Instance, outputs: Sequence[int], batches: Batches, window: int, on_ues: bool) -> float:
    """Every step played by events, with the tasks that still decode; padding is that of a batch's longest input."""
    steps = [one.steps(window, tokens) for tokens in outputs]
    total = 0.0
    for step in range(1, max(steps) + 1):
        times = []
        for batch in batches:
            if size := sum(steps[k] >= step for k in batch):
                longest = max(one.inputs[k] for k in batch)
                drafting, verifying = one.stage_times(size, longest, step, window)
                times.append((one.stage_times(1, longest, step, window)[0] if on_ues else drafting, verifying))
        total += played_on_ues(times) if on_ues else play(times)
    return total


def played_on_ues(times: Sequence[tuple[float, float]]) -> float:
    """All batches draft from the start; the verifier takes them in order."""
    now = 0.0
    for drafted, verifying in times:
        now = max(now, drafted) + verifying
    return now


def every_plan(tasks: int) -> Iterator[list[list[int]]]:
    """Every partition of the tasks into ordered batches."""
    for labels in itertools.product(range(tasks), repeat=tasks):
        if set(labels) == set(range(max(labels) + 1)):
            yield [[k for k in range(tasks) if labels[k] == batch] for batch in range(max(labels) + 1)]


@pytest.mark.parametrize("on_ues", [False, True])
def test_times_of_a_plan_are_those_of_a_simulation(on_ues: bool) -> None:
    rng = np.random.default_rng(1)
    for _ in range(40):
        tasks = int(rng.integers(1, 7))
        serving, inputs = draw(rng, tasks)
        outputs = rng.integers(1, serving.max_output_tokens + 1, tasks)
        window = int(rng.integers(1, 5))
        batches = [run.tolist() for run in np.array_split(rng.permutation(tasks), int(rng.integers(1, tasks + 1)))]
        timed = TimedTasks(serving, inputs, outputs, window, on_ues)
        expected = simulated_s(instance(serving, inputs), outputs.tolist(), batches, window, on_ues)
        assert timed.latency_s(batches) == pytest.approx(expected)


@pytest.mark.parametrize("on_ues", [False, True])
def test_plans_are_near_the_best_of_all_partitions(on_ues: bool) -> None:
    """Brute force over every ordered partition at every window."""
    rng = np.random.default_rng(2)
    ratios = []
    for _ in range(12):
        serving, inputs = draw(rng, 4, distinct=True)
        outputs = rng.integers(1, serving.max_output_tokens + 1, 4)
        found = plan_by_lengths(serving, inputs, outputs, on_ues=on_ues)
        one = instance(serving, inputs)
        best_s = min(
            simulated_s(one, outputs.tolist(), batches, window, on_ues)
            for window in range(1, serving.max_window + 1)
            for batches in every_plan(4)
            if all(map(one.fits, batches))
        )
        assert sorted(itertools.chain(*found.batches)) == list(range(4))
        assert all(map(one.fits, found.batches))
        assert found.inference_s == pytest.approx(
            simulated_s(one, outputs.tolist(), found.batches, found.window, on_ues)
        )
        ratios.append(found.inference_s / best_s)
    assert min(ratios) > 1 - 1e-9 and max(ratios) < 1.02 and sum(ratios) / len(ratios) < 1.002


def test_equal_lengths_are_the_papers_model() -> None:
    serving, inputs = paper_serving(output_tokens=64), np.array([40, 300, 10, 120, 77, 500, 260, 33])
    for name in ("dp", "static", "max"):
        known = plan_by_lengths(serving, inputs, np.full(8, 64), name)
        assert known.inference_s == pytest.approx(plan_by_lengths(serving, inputs, None, name).inference_s)
    proposed = plan_batches(serving, inputs, "best")
    assert plan_by_lengths(serving, inputs, None).inference_s <= proposed.inference_s * 1.001
    timed = plan_by_lengths(serving, inputs, None, "dp", proposed.window)
    assert timed.inference_s == pytest.approx(plan_batches(serving, inputs, "dp", proposed.window).inference_s)


def test_knowing_the_lengths_is_worth_something() -> None:
    """The planner that knows them is at least as fast as the batches that it would form without them."""
    serving = paper_serving(output_tokens=200)
    rng = np.random.default_rng(4)
    inputs, outputs = rng.integers(1, 512, 10), rng.integers(1, 201, 10)
    known = plan_by_lengths(serving, inputs, outputs)
    for name in TIMED:
        assert known.inference_s <= plan_by_lengths(serving, inputs, outputs, name).inference_s * (1 + 1e-9)


def test_tasks_price_their_own_bits_and_outputs() -> None:
    serving = paper_serving(output_tokens=64)
    task = Task(input_tokens=100, power_w=1.0, gain=3.0)
    problem = Problem(
        bandwidth_hz=1e6, noise_w=1.0, tasks=(task, msgspec.structs.replace(task, upload_bits=8e5, output_tokens=5)),
        bits_per_token=1000.0, draft_model=serving.draft_model, verify_model=serving.verify_model, cost=TABLE_2,
        memory_bytes=16e9, max_output_tokens=64, alpha=0.8,
    )  # fmt: skip
    assert problem.bits.tolist() == [1e5, 8e5]
    assert problem.outputs is not None and problem.outputs.tolist() == [64, 5]
    found = plan(problem)
    assert found["communication_s"] == pytest.approx(9e5 / (1e6 * math.log2(4)))
    assert found["bandwidth"] == pytest.approx([1 / 9, 8 / 9])
    longer = plan(msgspec.structs.replace(problem, tasks=(task, task)))
    assert found["inference_s"] < longer["inference_s"]
    at_ues = plan(msgspec.structs.replace(problem, drafting="ues"))
    assert at_ues["inference_s"] < found["inference_s"]


def test_what_has_no_model_is_refused() -> None:
    serving, inputs = paper_serving(output_tokens=64), np.array([10, 20])
    for name in ("autoregressive", "no-pipeline"):
        with pytest.raises(BadInput, match="knows neither output lengths"):
            plan_by_lengths(serving, inputs, np.array([5, 6]), name)
    with pytest.raises(BadInput, match="window 99 is out of range"):
        plan_by_lengths(serving, inputs, np.array([5, 6]), window=99)
    with pytest.raises(BadInput, match="upload_bits of a task must lie in"):
        Task(input_tokens=1, power_w=1.0, gain=1.0, upload_bits=0.0)
    with pytest.raises(BadInput, match="output_tokens of a task must lie in"):
        Task(input_tokens=1, power_w=1.0, gain=1.0, output_tokens=0)
    with pytest.raises(BadInput, match="a task has 65 output tokens"):
        Problem(
            bandwidth_hz=1.0, noise_w=1.0, max_output_tokens=64,
            tasks=(Task(input_tokens=1, power_w=1.0, gain=1.0, output_tokens=65),),
        )  # fmt: skip
