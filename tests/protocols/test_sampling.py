"""Warping, drawing, residuals and what travels, against transformers' own warpers, exact fractions and properties."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from testbed.errors import BadInput, ProtocolError
from testbed.protocols.sampling import (
    GREEDY,
    ONE,
    TARGET_TV,
    Draws,
    Sampling,
    accept,
    draw,
    pack_target,
    probabilities,
    quantise,
    read_target,
    request_seed,
    residual,
    warp,
)  # fmt: skip

SAMPLING = st.builds(
    Sampling, temperature=st.floats(0.05, 5.0), top_k=st.integers(0, 40), top_p=st.floats(0.05, 1.0)
)  # fmt: skip
SEED = st.integers(0, 2**32)


def logits_of(seed: int, size: int, spread: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size) * spread


def distribution(seed: int, size: int, spread: float = 3.0) -> np.ndarray:
    weights = np.exp(logits_of(seed, size, spread))
    return weights / weights.sum()


# ---------------------------------------------------------------- warping


@given(seed=SEED, size=st.integers(2, 300), sampling=SAMPLING)
@settings(max_examples=60, deadline=None)
def test_warping_is_what_transformers_does(seed: int, size: int, sampling: Sampling) -> None:
    import torch
    from transformers.generation import logits_process

    logits = logits_of(seed, size)
    scores = torch.from_numpy(logits)[None]
    scores = logits_process.TemperatureLogitsWarper(sampling.temperature)(None, scores)
    if sampling.top_k:
        scores = logits_process.TopKLogitsWarper(sampling.top_k)(None, scores)
    scores = logits_process.TopPLogitsWarper(sampling.top_p)(None, scores)
    expected = scores.softmax(-1)[0].numpy()
    np.testing.assert_allclose(warp(logits, sampling), expected, rtol=1e-9, atol=1e-12)


@given(seed=SEED, size=st.integers(2, 200), sampling=SAMPLING, shift=st.floats(-50, 50))
@settings(deadline=None)
def test_warping_keeps_order_counts_and_does_not_see_a_shift(
    seed: int, size: int, sampling: Sampling, shift: float
) -> None:
    logits = np.round(logits_of(seed, size), 1)  # many ties
    probs = warp(logits, sampling)
    assert probs.dtype == np.float64 and probs.min() >= 0 and math.isclose(probs.sum(), 1, abs_tol=1e-12)
    kept = np.flatnonzero(probs)
    assert 1 <= len(kept) <= (sampling.top_k or size)
    ranked = sorted(range(size), key=lambda i: (-logits[i], i))
    assert set(kept.tolist()) == set(ranked[: len(kept)])  # of equal ones, those of lower ids
    if sampling.top_p == 1:  # else a rounding error may move the cut
        np.testing.assert_allclose(warp(logits + shift, sampling), probs, atol=1e-9)


def by_full_sort(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Nucleus sampling by a stable sort of all entries and one running sum."""
    probs = warp(logits, Sampling(sampling.temperature, sampling.top_k))
    order = np.argsort(-probs, kind="stable")
    total, kept = 0.0, []
    for i in order[: np.count_nonzero(probs)].tolist():
        if kept and total >= sampling.top_p:
            break
        kept.append(i)
        total += float(probs[i])
    found = np.zeros_like(probs)
    found[kept] = probs[kept]
    return found / found.sum()


@given(
    seed=SEED, size=st.integers(1, 3000), spread=st.sampled_from([0.0, 0.3, 3.0, 12.0]),
    digits=st.sampled_from([0, 1, 9]),
    temperature=st.sampled_from([5e-324, 0.3, 1.0, 1e6]), top_k=st.sampled_from([0, 1, 40, 2000]),
    top_p=st.sampled_from([5e-324, 0.1, 0.5, 0.9, 0.999, 1 - 2.0**-53]) | st.floats(0.01, 0.99),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_top_p_keeps_the_bits_of_a_full_sort(
    seed: int, size: int, spread: float, digits: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits, how = np.round(logits_of(seed, size, spread), digits), Sampling(temperature, top_k, top_p)
    assert warp(logits, how).tobytes() == by_full_sort(logits, how).tobytes()


def test_top_p_sorts_few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort of the vocabulary took longer than everything else that reads a distribution."""
    sizes, whole = list[int](), np.sort

    def seen(values: np.ndarray) -> np.ndarray:
        sizes.append(len(values))
        return whole(values)

    monkeypatch.setattr(np, "sort", seen)
    warp(logits_of(3, 50_000), Sampling(1.0, 0, 0.9))
    assert len(sizes) == 1 and sizes[0] < 25_000


def test_warping_by_hand() -> None:
    logits = np.log([0.1, 0.4, 0.3, 0.2])
    np.testing.assert_allclose(warp(logits, Sampling(1.0, 3)), [0, 4 / 9, 3 / 9, 2 / 9])
    np.testing.assert_allclose(warp(logits, Sampling(1.0, 0, 0.65)), [0, 4 / 7, 3 / 7, 0])
    np.testing.assert_allclose(warp(logits, Sampling(0.5)), np.array([1, 16, 9, 4]) / 30)
    # top-k first: of 4/7 and 3/7 the first alone reaches 0.5, though 0.4 would not have
    np.testing.assert_allclose(warp(logits, Sampling(1.0, 2, 0.5)), [0, 1, 0, 0])


def test_ties_go_to_the_lower_id_and_no_temperature_to_the_first_of_the_best() -> None:
    logits = np.array([1.0, 2.0, 2.0, 2.0, 0.0])
    assert np.flatnonzero(warp(logits, Sampling(1.0, 2))).tolist() == [1, 2]
    assert np.flatnonzero(warp(logits, Sampling(1.0, 0, 0.3))).tolist() == [1, 2]
    assert warp(logits, GREEDY).tolist() == [0, 1, 0, 0, 0]
    assert warp(logits, Sampling(5e-324)).tolist() == [0, 1 / 3, 1 / 3, 1 / 3, 0]


@pytest.mark.parametrize("logits", [[0.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_logits_that_are_none(logits: list[float]) -> None:
    with pytest.raises(ValueError, match="not numbers"):
        warp(np.array(logits), Sampling())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((-0.1,), "temperature must be 0"),
        ((math.nan,), "temperature"),
        ((math.inf,), "temperature"),
        ((1.0, -1), "top-k must be 1 or more"),
        ((1.0, 0, 0.0), "top-p must lie above 0"),
        ((1.0, 0, 1.01), "top-p"),
        ((1.0, 0, math.nan), "top-p"),
    ],
)
def test_sampling_that_cannot_be(values: tuple[float, ...], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Sampling(*values)  # type: ignore[arg-type]


# ---------------------------------------------------------------- drawing, keeping, replacing


@given(weights=st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any), u=st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_token_under_u(weights: list[int], u: float) -> None:
    token = draw(np.array(weights, np.uint16), u)
    assert weights[token] > 0
    exact = Fraction(u) * sum(weights)
    slack = Fraction(1, 10**9)
    assert sum(weights[:token]) <= exact + slack and exact <= sum(weights[: token + 1]) + slack


def test_the_largest_u_draws_a_token_that_can_be_drawn() -> None:
    weights = np.array([0.1, 0.2, 0.7 / 3, 0.0])
    assert draw(weights, math.nextafter(1.0, 0.0)) == 2
    assert draw(np.array([0, 0, 3, 0]), 0.0) == 2


@given(seed=SEED, other=SEED, size=st.integers(2, 8), sampling=SAMPLING)
@settings(deadline=None)
def test_kept_and_replaced_tokens_together_are_the_targets(
    seed: int, other: int, size: int, sampling: Sampling
) -> None:
    """The identity behind rejection sampling, in exact fractions: min(p, q) + P(rejected)·residual = p."""
    p = warp(logits_of(seed, size), sampling)
    q = probabilities(quantise(warp(logits_of(other, size), sampling)))
    exact_p, exact_q = [Fraction(x) for x in p], [Fraction(x) for x in q]
    rejected = sum(b * (1 - min(Fraction(1), a / b)) for a, b in zip(exact_p, exact_q, strict=True) if b)
    left = residual(p, q)
    assert left.min() >= 0 and math.isclose(left.sum(), 1, rel_tol=1e-9)
    for a, b, r in zip(exact_p, exact_q, left, strict=True):
        assert float(min(a, b) + rejected * Fraction(r)) == pytest.approx(float(a), abs=1e-9)


@given(p=st.floats(0, 1), q=st.floats(1e-5, 1))
def test_a_token_stays_as_often_as_it_should(p: float, q: float) -> None:
    us = (np.arange(1000) + 0.5) / 1000
    share = sum(accept(p, q, u) for u in us) / 1000
    assert share == pytest.approx(min(1.0, p / q), abs=2e-3)


def test_a_residual_of_nothing_is_the_target() -> None:
    p = np.array([0.25, 0.75])
    assert residual(p, p).tolist() == [0.25, 0.75]
    assert residual(p, np.array([0.75, 0.25])).tolist() == [0, 1]


# ---------------------------------------------------------------- what travels


@given(seed=SEED, size=st.integers(1, 3000), spread=st.floats(0, 30))
@settings(max_examples=60, deadline=None)
def test_counts_add_up_stay_near_and_invent_nothing(seed: int, size: int, spread: float) -> None:
    p = distribution(seed, size, spread)
    p[np.random.default_rng(seed).random(size) < 0.3] = 0.0
    p[0] += 1 - p.sum()
    counts = quantise(p)
    assert counts.dtype == np.uint16 and counts.sum(dtype=np.int64) == 65535
    assert not counts[p == 0].any()
    assert np.abs(counts - p * 65535).max() < 1 + 1e-6
    assert np.array_equal(quantise(probabilities(counts)), counts)  # what was rounded stays


def test_counts_by_hand() -> None:
    assert quantise(np.array([0.0, 1.0])).tolist() == [0, ONE]
    assert quantise(np.full(4, 0.25)).tolist() == [16384, 16384, 16384, 16383]  # 16383.75 each; the last goes without
    assert quantise(np.full(2**17, 2.0**-17)).tolist() == [1] * ONE + [0] * (2**17 - ONE)


@given(seed=SEED, size=st.integers(1, 5000), spread=st.floats(0, 40))
@settings(max_examples=60, deadline=None)
def test_the_targets_distribution_arrives_within_the_stated_distance(seed: int, size: int, spread: float) -> None:
    p = distribution(seed, size, spread)
    packed = pack_target(p)
    assert packed.nbytes == 2 * size
    arrived = read_target(packed, size)
    assert 0.5 * np.abs(arrived - p).sum() <= TARGET_TV < 1 / 2000
    order = np.random.default_rng(seed).permutation(size)
    assert np.array_equal(read_target(packed[order], size), arrived[order])  # the sum is exact, whatever the order


def test_a_flat_and_a_certain_distribution_arrive_as_they_went() -> None:
    flat = np.full(2**17, 2.0**-17)
    assert np.array_equal(read_target(pack_target(flat), 2**17), flat)
    assert read_target(pack_target(np.array([0.0, 1.0, 0.0])), 3).tolist() == [0, 1, 0]


GOOD = pack_target(np.array([0.5, 0.25, 0.25]))


@pytest.mark.parametrize(
    "packed",
    [
        GOOD[:2], GOOD.reshape(1, 3), GOOD.astype(np.float32), GOOD * np.float16(0.99), np.zeros(3, np.float16),
        np.array([np.nan, 0, 0], np.float16), np.array([np.inf, 0, 0], np.float16),
        np.array([49152, -16384, 0], np.float16),
    ],
)  # fmt: skip
def test_a_target_that_is_no_distribution_is_refused(packed: np.ndarray) -> None:
    assert read_target(GOOD, 3).tolist() == [0.5, 0.25, 0.25]
    with pytest.raises(ProtocolError, match="target"):
        read_target(packed, 3)


# ---------------------------------------------------------------- random numbers


def test_random_numbers_repeat_and_no_two_are_the_same() -> None:
    def numbers() -> list[float]:
        return [
            getattr(Draws(seed, round_), name)(position)
            for seed in (0, 1, 2**64 - 1)
            for round_ in range(4)
            for name in ("draft", "accept", "replace")
            for position in range(4)
        ]

    assert numbers() == numbers()
    assert len(set(numbers())) == 3 * 4 * 3 * 4


def test_random_numbers_are_uniform_over_requests() -> None:
    seeds = [request_seed(0, "split", i) for i in range(4000)]
    assert len(set(seeds)) == 4000 and max(seeds) < 2**63 and request_seed(0, "rejection", 0) not in seeds
    for name in ("draft", "accept", "replace"):
        assert stats.kstest([getattr(Draws(s, 3), name)(1) for s in seeds], "uniform").pvalue > 1e-4
