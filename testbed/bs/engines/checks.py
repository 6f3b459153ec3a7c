"""Checks of what an engine computes."""

from __future__ import annotations

import numpy as np

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult
from testbed.errors import EngineError, ModelError


def check_result(result: VerifyResult) -> None:
    """Check that the target computed numbers.

    Raises:
        EngineError: a logit or log-probability is NaN, or two logits are infinite.
    """
    logprobs = result.logprobs
    # one NaN among the logits makes all log-probabilities of its row NaN: reading all of them takes long
    best = None if logprobs is None else logprobs[np.arange(len(logprobs)), result.argmax]
    if not np.isfinite(result.margin).all() or (best is not None and np.isnan(best).any()):
        raise EngineError("the target's logits are not numbers")


def check_model(engine: VerifyEngine) -> None:
    """Compute one token, so that a target with damaged weights is refused before it serves.

    Raises:
        ModelError: its logits are not numbers.
        EngineError: the pass failed.
    """
    first = np.zeros(1, np.int32)
    (result,) = engine.verify([VerifyRequest("check", first, first[:0])])
    engine.release("check")
    try:
        check_result(result)
    except EngineError as exc:
        raise ModelError(f"{engine.model_name}: {exc}; its weights are damaged") from exc
