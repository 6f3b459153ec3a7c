"""Coupled sampling: tokens are distributed as the warped target, and two models agree as often as the theory says."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from testbed.noise import exponentials
from testbed.protocols.methods import run_method
from testbed.protocols.sampling import GREEDY, Coupling, Sampling, warp
from tests.protocols.test_sampling import SAMPLING, logits_of
from tests.support.sampled import p_value, reference

SAMPLINGS = [Sampling(0.6), Sampling(1.0, top_k=8), Sampling(1.7, top_k=20, top_p=0.9)]


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return (weights / weights.sum()).astype(np.float32)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("across", ["seeds", "positions"])
def test_tokens_are_distributed_as_the_warped_model(sampling: Sampling, across: str) -> None:
    logits = logits_of(4, 40, 2.0)
    probs, count = softmax(logits), 5000
    places = [(seed, 17) if across == "seeds" else (3, seed) for seed in range(count)]
    counts = Counter((Coupling(sampling, seed)(probs, position),) for seed, position in places)
    expected = {(i,): chance for i, chance in enumerate(reference(np.log(probs).tolist(), sampling))}
    assert p_value(counts, expected) > 1e-4


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**31), size=st.integers(1, 60), sampling=SAMPLING)
@settings(max_examples=60, deadline=None)
def test_a_token_is_the_argmax_of_log_probability_and_gumbel_noise(
    seed: int, position: int, size: int, sampling: Sampling
) -> None:
    probs = softmax(logits_of(seed % 1000, size))
    with np.errstate(divide="ignore"):
        p = warp(np.log(probs), sampling)
    noise = [-math.log(x) for x in exponentials(seed, position, size)]
    sums = [math.log(a) + g if a > 0 else -math.inf for a, g in zip(p, noise, strict=True)]
    token = Coupling(sampling, seed)(probs, position)
    assert p[token] > 0
    assert sums[token] >= max(sums) - 1e-9


def test_equal_tokens_rank_by_id_and_a_certain_one_is_taken() -> None:
    certain = np.zeros(9, np.float32)
    certain[4] = 1.0
    assert {Coupling(Sampling(), seed)(certain, seed) for seed in range(50)} == {4}
    narrow = Sampling(1.0, top_k=1)
    assert {Coupling(narrow, seed)(np.full(9, 1 / 9, np.float32), 3) for seed in range(50)} == {0}


def test_two_models_agree_as_often_as_gumbel_coupling_says() -> None:
    """P(equal) = Σ_v 1 / Σ_u max(p_u / p_v, q_u / q_v): both races are won by v. At least (1 − TV) / (1 + TV)."""
    p, q = (softmax(logits_of(seed, 12, 1.2)) for seed in (1, 2))
    p, q = p / p.sum(), q / q.sum()
    expected = sum(1 / np.maximum(p / p[v], q / q[v]).sum() for v in range(12))
    count = 6000
    equal = sum(Coupling(Sampling(), seed)(p, 5) == Coupling(Sampling(), seed)(q, 5) for seed in range(count))
    assert stats.binomtest(equal, count, float(expected)).pvalue > 1e-4
    apart = 0.5 * float(np.abs(p - q).sum())
    assert (1 - apart) / (1 + apart) <= expected <= 1 - apart


def test_which_methods_are_coupled() -> None:
    asked, plain = Sampling(0.7, 5, 0.9, coupled=True), Sampling(0.7, 5, 0.9)
    assert {run_method(name).sampling(asked) for name in ("coupled", "fh", "sh", "auto", "target-only")} == {asked}
    assert {run_method(name).sampling(asked) for name in ("rejection", "split")} == {plain}
    assert {run_method(name).sampling(asked) for name in ("greedy", "colocated")} == {GREEDY}
    assert run_method("coupled").sampling(plain) == asked
    assert {run_method(name).sampling(plain) for name in ("target-only", "rejection", "split")} == {plain}
    assert {run_method(name).sampling(plain) for name in ("fh", "sh", "auto", "greedy")} == {GREEDY}
    assert {run_method(name).sampling(Sampling(0.0, 5, coupled=True)) for name in ("coupled", "fh", "rejection")} == {
        GREEDY
    }
    assert asked.coupling(9) == Coupling(asked, 9)
    assert plain.coupling(9) is None and Sampling(0.0, coupled=True).coupling(9) is None
    assert plain.independent and not asked.independent and not GREEDY.independent
