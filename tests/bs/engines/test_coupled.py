"""Tokens of coupled sampling in results of passes, against sums of log-probabilities and noise entry by entry."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bs.engines.base import Share, VerifyRequest, VerifyResult
from testbed.bs.engines.checks import check_result
from testbed.bs.engines.coupled import chosen, coupled
from testbed.errors import EngineError
from testbed.noise import exponentials
from testbed.protocols.sampling import Coupling, Sampling
from tests.support.sampled import reference

SIZE = 12


def passed(seed: int, window: int) -> VerifyResult:
    logits = np.random.default_rng(seed).normal(size=(window + 1, SIZE)).astype(np.float32) * 2
    ranked = np.sort(logits, axis=1)
    return VerifyResult(
        argmax=logits.argmax(1).astype(np.int32),
        margin=ranked[:, -1] - ranked[:, -2],
        draft_gap=np.zeros(window, np.float32),
        logprobs=logits - np.log(np.exp(logits).sum(1, keepdims=True)),
    )


def request_of(sampling: Sampling | None, draft: list[int], prefix: int = 7) -> VerifyRequest:
    coupling = None if sampling is None else Coupling(sampling, 5)
    ids = np.zeros(prefix, np.int32)
    return VerifyRequest("s", ids, np.array(draft, np.int32), logprobs=True, coupling=coupling)


@given(
    seed=st.integers(0, 2**32), draft=st.lists(st.integers(0, SIZE - 1), max_size=4),
    temperature=st.floats(0.2, 3.0), top_k=st.sampled_from([0, 1, 3, 6]), top_p=st.sampled_from([1.0, 0.8, 0.3]),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_tokens_margins_and_gaps(seed: int, draft: list[int], temperature: float, top_k: int, top_p: float) -> None:
    sampling, result = Sampling(temperature, top_k, top_p), passed(seed, len(draft))
    found = chosen(request_of(sampling, draft), result)
    check_result(found)
    assert found.logprobs is None and found.draft_gap.shape == (len(draft),)
    assert result.logprobs is not None
    for i, row in enumerate(result.logprobs.tolist()):
        noise = [-math.log(x) for x in exponentials(5, 7 + i, SIZE)]
        kept = [v for v, chance in enumerate(reference(row, sampling)) if chance > 0]
        sums = {v: row[v] + temperature * noise[v] for v in range(SIZE)}
        ranked = sorted(kept, key=lambda v: -sums[v])
        assert found.argmax[i] == ranked[0]
        if len(kept) > 1:
            assert found.margin[i] == pytest.approx(sums[ranked[0]] - sums[ranked[1]], abs=1e-4)
        else:
            assert found.margin[i] == result.margin[i]
        if i < len(draft):
            behind = sums[ranked[0]] - sums[draft[i]]
            left_out = behind if draft[i] in kept else max(behind, min(row[v] for v in kept) - row[draft[i]])
            assert found.draft_gap[i] == pytest.approx(left_out, abs=1e-4)
            assert (found.draft_gap[i] == 0) == (draft[i] == found.argmax[i])


def test_results_without_a_coupling_and_unfinished_ones_stay() -> None:
    result = passed(1, 2)
    plain = request_of(None, [1, 2])
    assert chosen(plain, result) is result
    unfinished = Share(request_of(Sampling(), [1, 2]), 3, 0, None)
    assert coupled(unfinished) is unfinished
    assert coupled(unfinished._replace(result=result)).result is not result


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused_as_under_greedy_decoding(wrong: float) -> None:
    result = passed(1, 1)
    assert result.logprobs is not None
    result.logprobs[1] = math.nan
    result.margin[1] = wrong
    with pytest.raises(EngineError, match="not numbers"):
        check_result(chosen(request_of(Sampling(), [1]), result))
