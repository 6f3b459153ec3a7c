"""Tokens of coupled sampling in results of passes, against sums of log-probabilities and noise entry by entry."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bs.engines.base import Share, VerifyRequest, VerifyResult
from testbed.bs.engines.checks import check_result
from testbed.bs.engines.coupled import choices, chosen, coupled, few_chosen, unchosen
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


@pytest.mark.parametrize("most", [0, 1, SIZE, 2 * SIZE + 1, 100 * SIZE])
def test_tokens_chosen_a_few_at_a_time_are_the_same(most: int) -> None:
    result, request = passed(8, 6), request_of(Sampling(0.8, 5, 0.9), [1, 2, 3, 4, 5, 6])
    found = choices(Share(request, 7, 0, result))
    assert found is not None and found.left == 7 * SIZE
    while found.left:
        before, part = found.left, found.part(most)
        assert 0 < part <= max(most, SIZE)
        found.choose(most)
        assert found.left == before - part
    whole = chosen(request, result)
    for name in ("argmax", "margin", "draft_gap"):
        assert np.array_equal(getattr(found.result, name), getattr(whole, name)), name
    assert found.result.logprobs is None


@pytest.mark.parametrize(("most", "done"), [(SIZE - 1, ""), (SIZE, "b"), (4 * SIZE, "bc"), (9 * SIZE, "abc")])
def test_the_shortest_rounds_of_a_pass_are_chosen_first_and_few_values_read(most: int, done: str) -> None:
    how = Sampling(1.0)
    drafts = {"a": (how, [1, 2, 3, 4]), "b": (how, []), "c": (how, [5, 6]), "plain": (None, [1] * 9)}
    shares = [Share(request_of(*one), 1, 0, passed(3, len(one[1]))) for one in drafts.values()]
    found = few_chosen([*shares, Share(request_of(how, [1]), 1, 0, None)], most)
    assert [one.request for one in found[:4]] == [one.request for one in shares] and found[4].result is None
    left = {name: unchosen(one) for name, one in zip(drafts, found, strict=False)}
    assert left == {"a": 0 if "a" in done else 5 * SIZE, "b": 0 if done else SIZE,
                    "c": 0 if "c" in done else 3 * SIZE, "plain": 0}  # fmt: skip
    assert found[3] is shares[3]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused_as_under_greedy_decoding(wrong: float) -> None:
    result = passed(1, 1)
    assert result.logprobs is not None
    result.logprobs[1] = math.nan
    result.margin[1] = wrong
    with pytest.raises(EngineError, match="not numbers"):
        check_result(chosen(request_of(Sampling(), [1]), result))
