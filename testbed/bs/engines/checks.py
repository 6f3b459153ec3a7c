"""Checks of what an engine computes."""

from __future__ import annotations

import numpy as np

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult
from testbed.errors import EngineError, ModelError

PROBED, DRAFTED = 64, 4
"""Tokens that are computed to see whether a target works, and how many of them are drafted. torch's attention on CPUs
gives numbers for up to 15 keys that are none.
"""


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
    """Compute a short prefix and draft, so that a target with damaged weights is refused before it serves.

    Raises:
        ModelError: its logits are not numbers.
        EngineError: the pass failed.
    """
    ids = np.arange(min(PROBED, engine.max_positions - 1), dtype=np.int32) % engine.vocab_size
    prefix = max(1, len(ids) - DRAFTED)
    (result,) = engine.verify([VerifyRequest("check", ids[:prefix], ids[prefix:])])
    engine.release("check")
    try:
        check_result(result)
    except EngineError as exc:
        raise ModelError(f"{engine.model_name}: {exc}; its weights or config.json are damaged") from exc
