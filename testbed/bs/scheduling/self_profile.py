"""Self-profile at start-up: pass times of this engine on this machine, before the first request."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import nnls

from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.bs.scheduling.estimator_fit import Sample
from testbed.errors import EngineError
from testbed.optim.pass_time import Coefficients, RequestWork, features

LARGEST = 384
"""Tokens of the longest prompt."""
SHARES = (1 / 16, 1 / 4, 1)
WIDTHS = (1, 4)
"""Requests of a pass."""
DRAFTED = 4
MOST_IDLE = 16
"""Steps without a result in a row: the stages of an engine's pipeline, at most."""


def self_profile(engine: VerifyEngine, seed: int = 0) -> tuple[Coefficients, float]:
    """Coefficients of eq. 19 fitted to a dozen passes or more, and their mean relative error.

    Non-negative least squares of relative errors, as a start for an `OnlineEstimator`.

    Raises:
        EngineError: a pass failed.
    """
    rng, names = np.random.default_rng(seed), (f"self-profile/{i}" for i in itertools.count())
    limit = min(LARGEST, engine.max_positions - DRAFTED - 2)
    sizes = [max(1, int(share * limit)) for share in SHARES]
    list(_measured(engine, rng, [next(names)], sizes[0]))  # warm-up
    samples = [
        sample
        for size, width in itertools.product(sizes, WIDTHS)
        for sample in _measured(engine, rng, [next(names) for _ in range(width)], size)
    ]
    x = np.array([features(sample.batch) / sample.latency_s for sample in samples])
    scale = np.maximum(x.max(axis=0), 1e-12)
    found = nnls(x / scale, np.ones(len(x)))[0] / scale
    return Coefficients(*found.tolist()), float(np.abs(x @ found - 1).mean())


def _measured(engine: VerifyEngine, rng: np.random.Generator, names: Sequence[str], size: int) -> Iterator[Sample]:
    """Passes over new prompts, and over follow-ups of the same sessions."""
    prompts = [rng.integers(0, engine.vocab_size, size, np.int32) for _ in names]
    none = np.zeros(0, np.int32)
    yield from _passes(engine, [VerifyRequest(name, ids, none) for name, ids in zip(names, prompts, strict=True)])
    more = [rng.integers(0, engine.vocab_size, 1 + DRAFTED, np.int32) for _ in names]
    yield from _passes(
        engine,
        [
            VerifyRequest(name, np.concatenate([prompt, ids[:1]]), ids[1:])
            for name, prompt, ids in zip(names, prompts, more, strict=True)
        ],
    )
    for name in names:
        engine.release(name)


def _passes(engine: VerifyEngine, batch: Sequence[VerifyRequest]) -> Iterator[Sample]:
    """Time the passes over a batch: several where the engine bounds new tokens of a pass or of a prompt."""
    for request in batch:
        engine.submit(request)
    left, idle, start_s = len(batch), 0, time.perf_counter()
    while left:
        if shares := engine.step():
            took_s = time.perf_counter() - start_s
            left -= sum(share.result is not None for share in shares)
            yield Sample(tuple(RequestWork(share.new, share.cached) for share in shares), took_s)
            idle, start_s = 0, time.perf_counter()
        elif (idle := idle + 1) > MOST_IDLE:
            raise EngineError("the engine makes no progress")
