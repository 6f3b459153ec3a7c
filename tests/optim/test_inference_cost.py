"""Memory, FLOPs and times, checked against matrix sizes and an event-driven pipeline simulation."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.optim.inference_cost import (
    Cost,
    Model,
    ServedPair,
    cache_bytes,
    completion_s,
    draft_flops,
    draft_s,
    fit_runtime,
    forward_flops,
    inference_s,
    most_tasks,
    parameter_bytes,
    steps_needed,
    tokens_per_step,
    verify_flops,
    verify_s,
)
from tests.optim.problems import LLAMA, TABLE_2, draw, instance, paper_serving
from tests.support.batching import play

TIME = st.floats(0, 10)


def test_sizes_of_known_models() -> None:
    # matrices alone, without embeddings: 22·(4·2048² + 2·2048·5632) = 876,609,536 parameters of two bytes
    assert parameter_bytes(LLAMA["1.1B"]) == 2 * 876_609_536
    # keys and values of 2048 numbers in 22 layers, two bytes each, for 10 tasks of 300 positions
    assert cache_bytes(LLAMA["1.1B"], 10, 100, 200) == 10 * 300 * 22 * 2 * 2048 * 2


def test_a_token_takes_two_flops_a_weight() -> None:
    model = LLAMA["7B"]
    weights = parameter_bytes(model) / 2
    assert forward_flops(model.layers, model.hidden, model.ffn, 1, 0) == pytest.approx(2 * weights, rel=1e-3)


@pytest.mark.parametrize("window", [1, 3, 10])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_flops_and_times_are_those_of_the_matrices(window: int, alpha: float) -> None:
    serving = paper_serving(alpha=alpha)
    one = instance(serving, np.array([1]))
    per_step = one.gained(window)
    assert tokens_per_step(alpha, window) == pytest.approx(per_step)
    for inputs in (1, 37, 512):
        for step in (1, 2, 3, 50):
            held = inputs + (step - 1) * per_step - 1
            for i in range(1, window + 1):
                prompt = step == 1 and i == 1
                expected = one.draft.matrices(inputs, inputs) if prompt else one.draft.matrices(1, held + i)
                assert draft_flops(serving.draft_model, inputs, step, i, per_step) == pytest.approx(expected)
            new = inputs + window if step == 1 else 1 + window
            expected = one.verify.matrices(new, new if step == 1 else held + new)
            assert verify_flops(serving.verify_model, inputs, step, window, per_step) == pytest.approx(expected)
            drafting, verifying = one.stage_times(5, inputs, step, window)
            assert draft_s(serving, 5, inputs, step, window) == pytest.approx(drafting)
            assert verify_s(serving, 5, inputs, step, window) == pytest.approx(verifying)


def test_arrays_broadcast_as_their_elements_do() -> None:
    serving = paper_serving()
    sizes, inputs, steps = np.array([1, 8, 30]), np.array([5, 100, 512]), np.arange(1, 6)[:, None]
    for stage in (draft_s, verify_s):
        whole = stage(serving, sizes, inputs, steps, 3)
        assert whole.shape == (5, 3)
        for n in range(5):
            for m in range(3):
                assert whole[n, m] == stage(serving, int(sizes[m]), int(inputs[m]), n + 1, 3)
    assert np.array_equal(
        forward_flops(2, 4, 6, np.array([1, 3]), np.array([0, 7])),
        [forward_flops(2, 4, 6, *at) for at in ((1, 0), (3, 7))],
    )


@pytest.mark.parametrize(
    ("output_tokens", "alpha", "window", "steps"),
    [
        (2048, 0.8, 1, 1138), (2048, 0.8, 7, 493), (2048, 0.0, 5, 2048), (2048, 1.0, 7, 256), (18, 0.8, 1, 10),
        (1, 0.9, 9, 1),
    ],
)  # fmt: skip
def test_steps(output_tokens: int, alpha: float, window: int, steps: int) -> None:
    assert steps_needed(output_tokens, alpha, window) == steps
    assert instance(paper_serving(output_tokens, alpha), np.array([1])).steps(window) == steps


@given(st.lists(st.tuples(TIME, TIME), min_size=1, max_size=8))
def test_the_recursion_is_a_pipeline(times: list[tuple[float, float]]) -> None:
    batches = [(np.array([d, 0.0]), np.array([v, 0.0])) for d, v in times]
    done = completion_s(batches)
    assert done[0] == pytest.approx(play(times))
    assert done[1] == 0
    assert completion_s(batches, pipeline=False)[0] == pytest.approx(sum(map(sum, times)))


@pytest.mark.parametrize("seed", range(5))
def test_finished_batches_do_not_delay_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    serving, inputs = draw(rng, 6, most_output=40)
    serving = msgspec.structs.replace(serving, memory_bytes=1e15)  # the batches need not be a plan
    one = instance(serving, inputs)
    sizes = rng.integers(1, 9, 6)
    outputs = rng.integers(1, 41, 6)
    last = [one.steps(2, int(tokens)) for tokens in outputs]
    expected = sum(
        play([one.stage_times(int(sizes[m]), int(inputs[m]), n, 2) for m in range(6) if last[m] >= n])
        for n in range(1, max(last) + 1)
    )
    assert inference_s(serving, 2, sizes, inputs, outputs) == pytest.approx(expected)
    assert len(set(last)) > 1
    apart = sum(
        sum(one.stage_times(int(sizes[m]), int(inputs[m]), n, 2)) for m in range(6) for n in range(1, last[m] + 1)
    )
    assert inference_s(serving, 2, sizes, inputs, outputs, pipeline=False) == pytest.approx(apart)


def test_as_many_tasks_as_fit_and_not_one_more() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        serving, inputs = draw(rng, 3)
        one = instance(serving, inputs)
        for k, most in enumerate(most_tasks(serving, inputs).tolist()):
            assert one.fits([k] * most)
            assert not one.fits([k] * (most + 1))


def test_a_task_that_does_not_fit_alone_is_named() -> None:
    with pytest.raises(
        BadInput, match=r"a task of 900 input and 2048 output tokens needs 2\.285e\+09 bytes .* is 2e\+09"
    ):
        most_tasks(paper_serving(memory_bytes=2e9), np.array([10, 900]))


# ---------------------------------------------------------------- fits


def test_coefficients_come_back_from_noisy_times() -> None:
    rng = np.random.default_rng(1)
    batch, flops = rng.integers(1, 49, 400), rng.choice([0.33e12, 0.66e12, 1.31e12], 400)
    exact = 2.08e-14 * batch * flops + 1.28e-2
    fit = fit_runtime(batch, flops, exact)
    assert fit == pytest.approx((2.08e-14, 1.28e-2, 1.0), rel=1e-9)
    noisy = fit_runtime(batch, flops, exact + rng.normal(0, 0.02, 400))
    assert noisy.c1 == pytest.approx(2.08e-14, rel=0.02)
    assert noisy.c2 == pytest.approx(1.28e-2, abs=3 * 0.02 * 2 / np.sqrt(400))
    slope, intercept = np.polyfit(batch * flops / 1e12, exact + np.random.default_rng(2).normal(0, 0.02, 400), 1)
    again = fit_runtime(batch, flops, exact + np.random.default_rng(2).normal(0, 0.02, 400))
    assert (again.c1, again.c2) == pytest.approx((slope / 1e12, intercept))
    assert 0.9 < noisy.r2 < 1


def test_r2_is_the_share_that_the_line_explains() -> None:
    # a line of slope 1/2 through (0, 0), (1, 1), (2, 1): residuals 1/6, 1/3, 1/6 against a spread of 2/3
    assert fit_runtime([1, 1, 1], [0, 1, 2], [0, 1, 1]) == pytest.approx((0.5, 1 / 6, 0.75))
    assert fit_runtime([1, 2], [3, 3], [5, 5]).r2 == 1


@pytest.mark.parametrize(
    ("batch", "flops", "seconds", "said"),
    [
        ([1], [1], [1], "at least two different amounts of work"),
        ([1, 2], [2, 1], [1, 2], "at least two different amounts of work"),
        ([], [], [], "at least two different amounts of work"),
        ([1, 2], [1, 2], [1], "equal length"),
        ([1, 2], [1, np.nan], [1, 2], "must be finite"),
    ],
)
def test_impossible_fits_are_refused(batch: list[float], flops: list[float], seconds: list[float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        fit_runtime(batch, flops, seconds)


# ---------------------------------------------------------------- refusals


def test_invalid_models_hardware_and_limits_are_refused() -> None:
    good = paper_serving()
    for alpha in (-0.1, 1.1, float("nan")):
        with pytest.raises(BadInput, match=r"alpha must lie in \[0, 1\]"):
            paper_serving(alpha=alpha)
    for memory in (0.0, float("inf"), float("nan")):
        with pytest.raises(BadInput, match="memory_bytes must be positive and at most"):
            paper_serving(memory_bytes=memory)
    for output, window in ((0, 1), (1, 0)):
        with pytest.raises(BadInput, match=r"must lie in \[1, \d+\], not 0"):
            ServedPair(
                draft_model=good.draft_model, verify_model=good.verify_model, cost=TABLE_2, memory_bytes=1.0, alpha=0.5,
                max_output_tokens=output, max_window=window,
            )  # fmt: skip
    with pytest.raises(BadInput, match=r"of a model lie in \[1, 16777216\], not \(0, 4, 4\)"):
        Model(layers=0, hidden=4, ffn=4)
    with pytest.raises(BadInput, match=r"cost coefficients lie in \[0, 1e\+06\], not -1, 0, 1, 0"):
        Cost(c1_draft=-1, c2_draft=0, c1_verify=1, c2_verify=0)
    with pytest.raises(BadInput, match="cost coefficients lie in"):
        Cost(c1_draft=1, c2_draft=0, c1_verify=1, c2_verify=1e308)
    with pytest.raises(BadInput, match="drafting and verifying take time"):
        Cost(c1_draft=0, c2_draft=0, c1_verify=1, c2_verify=0)
