"""Engines are held to transformers' plain forward pass, without a cache, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult
from tests.support.models import TOKENS
from tests.support.reference import Reference


def tokens(rng: np.random.Generator, count: int) -> NDArray[np.int32]:
    """Random ids of the random models' vocabulary."""
    return rng.integers(0, TOKENS, count, dtype=np.int32)


def ask(
    session: str, prefix: Sequence[int], draft: Sequence[int] = (), *, hidden: bool = True, logprobs: bool = True
) -> VerifyRequest:
    """A request that asks for all there is, unless told otherwise."""
    return VerifyRequest(session, np.array(prefix, np.int32), np.array(draft, np.int32), hidden, logprobs)


def check(result: VerifyResult, request: VerifyRequest, reference: Reference, atol: float = 1e-4) -> None:
    """Every field of a result against one uncached pass over the whole prompt; tokens whose logits are closer than
    `atol` are ties, of which either may be the argmax.
    """
    prompt = [*request.prefix.tolist(), *request.draft.tolist()]
    logits, hidden = (rows[len(request.prefix) - 1 :] for rows in reference.outputs(prompt))
    ordered = np.sort(logits, axis=-1)
    faced = logits[np.arange(len(request.draft)), request.draft]
    assert result.argmax.dtype == np.int32
    assert (ordered[:, -1] - logits[np.arange(len(logits)), result.argmax] < atol).all()
    np.testing.assert_allclose(result.margin, ordered[:, -1] - ordered[:, -2], atol=atol)
    np.testing.assert_allclose(result.draft_gap, ordered[:-1, -1] - faced, atol=atol)
    assert (result.hidden is not None) == request.hidden
    if result.hidden is not None:
        assert result.hidden.dtype == np.float32
        np.testing.assert_allclose(result.hidden, hidden, atol=atol)
    assert (result.logprobs is not None) == request.logprobs
    if result.logprobs is not None:
        shifted = logits.astype(np.float64) - ordered[:, -1:]
        np.testing.assert_allclose(
            result.logprobs, shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)), atol=2 * atol
        )


def verify_and_check(
    engine: VerifyEngine, reference: Reference, *requests: VerifyRequest, atol: float = 1e-4
) -> list[VerifyResult]:
    """Verify a batch and hold every result to the oracle."""
    results = engine.verify(requests)
    assert len(results) == len(requests)
    for result, request in zip(results, requests, strict=True):
        check(result, request, reference, atol)
    return results


def decode(engine: VerifyEngine, prompt: Sequence[int], count: int, window: int, rng: np.random.Generator) -> list[int]:
    """Greedy speculative decoding of `count` tokens with a drafter that is right half of the time."""
    ids = list(prompt)
    right: list[int] = []
    while len(ids) < len(prompt) + count:
        draft = [*right, *tokens(rng, window).tolist()][:window]
        draft = [token if rng.random() < 0.8 else int(rng.integers(TOKENS)) for token in draft]
        (result,) = engine.verify([ask("decode", ids, draft, hidden=False, logprobs=False)])
        target = result.argmax.tolist()
        accepted = next((i for i, token in enumerate(draft) if token != target[i]), len(draft))
        ids += target[: accepted + 1]
        right = target[accepted + 1 :]
    return ids[len(prompt) : len(prompt) + count]
