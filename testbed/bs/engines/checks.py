"""Checks of a batch, shared by all engines, and of its results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult
from testbed.errors import BadInput, EngineError, ModelError


def prompt_of(request: VerifyRequest) -> NDArray[np.int32]:
    """[prefix + K] committed prefix and drafted tokens, the input of the target."""
    return np.concatenate([request.prefix, request.draft]).astype(np.int32, copy=False)


def check_batch(batch: Sequence[VerifyRequest], vocab_size: int, max_positions: int) -> None:
    """Refuse a batch that no engine can verify.

    Raises:
        BadInput: an empty prefix, ids outside the vocabulary, or more positions than `max_positions`.
    """
    for request in batch:
        if len(request.prefix) == 0:
            raise BadInput(f"session {request.session}: the prefix is empty, but a pass needs one token or more")
        positions = len(request.prefix) + len(request.draft) + 1
        if positions > max_positions:
            raise BadInput(f"session {request.session}: {positions} positions, but the target takes {max_positions}")
        ids = prompt_of(request)
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise BadInput(f"session {request.session}: token ids outside the vocabulary of {vocab_size}")


def check_results(results: Sequence[VerifyResult]) -> None:
    """Check that the target computed numbers.

    Raises:
        EngineError: a logit or log-probability is NaN, or two logits are infinite.
    """
    margins = np.concatenate([result.margin for result in results])
    logprobs = (result.logprobs for result in results if result.logprobs is not None)
    if not np.isfinite(margins).all() or any(np.isnan(found).any() for found in logprobs):
        raise EngineError("the target's logits are not numbers")


def check_model(engine: VerifyEngine) -> None:
    """Compute one token, so that a target with damaged weights is refused before it serves.

    Raises:
        ModelError: its logits are not numbers.
        EngineError: the pass failed.
    """
    first = np.zeros(1, np.int32)
    results = engine.verify([VerifyRequest("check", first, first[:0])])
    engine.release("check")
    try:
        check_results(results)
    except EngineError as exc:
        raise ModelError(f"{engine.model_name}: {exc}; its weights are damaged") from exc
