"""Baselines of the paper: their batches, and their latencies against the oracle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.optim.baselines import ALGORITHMS, BASELINES, autoregressive_s, batch_by
from testbed.optim.inference_cost import forward_flops
from testbed.optim.planner import plan_batches
from tests.optim.problems import LLAMA, draw, instance, paper_serving

INPUTS = np.random.default_rng(1).integers(1, 513, 30)
SPECULATIVE = [name for name in ALGORITHMS if name != "autoregressive"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_task_is_in_one_batch_and_memory_is_kept(name: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        serving, inputs = draw(rng, 9)
        if name == "fixed-window":
            serving = paper_serving(20)
        plan = batch_by(name, serving, inputs)
        one = instance(serving, inputs)
        assert sorted(itertools.chain(*plan.batches)) == list(range(9))
        if name == "autoregressive":
            assert plan.window == 0
            continue
        assert all(one.fits(batch) for batch in plan.batches)
        if name == "no-pipeline":
            times = [
                sum(one.stage_times(len(batch), int(inputs[list(batch)].max()), n, plan.window))
                for batch in plan.batches
                for n in range(1, one.steps(plan.window) + 1)
            ]
            assert plan.inference_s == pytest.approx(sum(times))
        else:
            assert plan.inference_s == pytest.approx(one.latency_s(plan.batches, plan.window))


@pytest.mark.parametrize("name", [name for name in SPECULATIVE if name != "best"])
def test_no_baseline_beats_the_planner(name: str) -> None:
    rng = np.random.default_rng(2)
    for _ in range(8):
        serving, inputs = draw(rng, 8)
        serving = paper_serving(20) if name == "fixed-window" else serving
        assert batch_by(name, serving, inputs).inference_s >= plan_batches(serving, inputs).inference_s * (1 - 1e-9)


def test_sizes_are_as_described() -> None:
    serving = paper_serving()
    one = instance(serving, INPUTS)
    assert [len(batch) for batch in batch_by("no-batching", serving, INPUTS).batches] == [1] * 30
    assert [len(batch) for batch in batch_by("static", serving, INPUTS).batches] == [8, 8, 8, 6]
    assert batch_by("static", serving, INPUTS).batches[0] == tuple(range(8))
    longest = int(INPUTS.argmax())
    size = len(batch_by("max", serving, INPUTS).batches[0])
    assert one.fits([longest] * size)
    assert size == 30 or not one.fits([longest] * (size + 1))
    small = paper_serving(memory_bytes=3e9)  # fits three tasks
    assert [len(batch) for batch in batch_by("static", small, INPUTS).batches[:2]] == [2, 2]
    assert [len(batch) for batch in batch_by("max", small, INPUTS).batches[:2]] == [2, 2]


def test_the_fixed_window_is_seven() -> None:
    serving = paper_serving()
    plan = batch_by("fixed-window", serving, INPUTS)
    assert plan == plan_batches(serving, INPUTS, "dp", 7)
    with pytest.raises(BadInput, match="fixed-window drafts 7 tokens; leave the window out, or plan by dp with 4"):
        batch_by("fixed-window", serving, INPUTS, 4)


def test_without_a_pipeline_batches_stay_and_latency_grows() -> None:
    serving = paper_serving()
    proposed, apart = plan_batches(serving, INPUTS, "dp"), batch_by("no-pipeline", serving, INPUTS)
    assert (apart.window, apart.batches) == (proposed.window, proposed.batches)
    assert apart.inference_s >= proposed.inference_s


def test_heuristic_sizes_grow_until_the_latency_rises() -> None:
    serving = paper_serving()
    one = instance(serving, INPUTS[:12])
    plan = batch_by("heuristic", serving, INPUTS[:12], 2)
    size = len(plan.batches[0])

    def of_size(n: int) -> float:
        return one.latency_s([list(range(k, min(k + n, 12))) for k in range(0, 12, n)], 2)

    assert plan.inference_s == pytest.approx(of_size(size))
    falling = [of_size(n) for n in range(2, size + 1)]
    assert falling == sorted(falling, reverse=True)
    assert size == 12 or of_size(size + 1) > of_size(size)


def test_autoregressive_serving_is_one_pass_a_token() -> None:
    serving = paper_serving(40)
    model, cost = LLAMA["7B"], serving.cost
    seconds = 0.0
    for token in range(40):
        new, cached = (25, 0) if token == 0 else (1, 25 + token - 1)
        flops = forward_flops(model.layers, model.hidden, model.ffn, new, cached)
        seconds += cost.c1_verify * flops * 6 + cost.c2_verify
    assert autoregressive_s(serving, np.array([6]), np.array([25])) == pytest.approx([seconds])
    with pytest.raises(BadInput, match="autoregressive serving drafts nothing"):
        batch_by("autoregressive", serving, INPUTS, 3)


def test_autoregressive_serving_in_one_batch_can_win() -> None:
    """As the errata note: the verifier's memory is not limited, and its passes are mostly overhead."""
    inputs = np.random.default_rng(0).integers(1, 513, 100)
    serving = paper_serving()
    alone = autoregressive_s(serving, np.array([100]), np.array([inputs.max()]))[0]
    assert alone < plan_batches(serving, inputs).inference_s


def test_an_unknown_algorithm_lists_the_known_ones() -> None:
    with pytest.raises(
        BadInput, match=r"no planner 'x'; known: best, dp, no-pipeline, no-batching, .*, autoregressive"
    ):
        batch_by("x", paper_serving(), INPUTS)
    for name in BASELINES:
        with pytest.raises(BadInput):
            batch_by(name, paper_serving(memory_bytes=1e9), INPUTS, 0)
