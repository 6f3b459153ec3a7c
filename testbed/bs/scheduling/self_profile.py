"""Self-profile at start-up: pass times of this engine on this machine, before the first request."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import nnls

from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.bs.scheduling.estimator_fit import Sample
from testbed.optim.pass_time import Coefficients, RequestWork, features

LARGEST = 384
"""Tokens of the longest prompt."""
SHARES = (1 / 16, 1 / 4, 1)
WIDTHS = (1, 4)
"""Requests of a pass."""
DRAFTED = 4


def self_profile(engine: VerifyEngine, seed: int = 0) -> tuple[Coefficients, float]:
    """Coefficients of eq. 19 fitted to a dozen passes, and their mean relative error.

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
    """A pass over new prompts, and a follow-up pass of the same sessions."""
    prompts = [rng.integers(0, engine.vocab_size, size, np.int32) for _ in names]
    none = np.zeros(0, np.int32)
    yield _pass(engine, [VerifyRequest(name, ids, none) for name, ids in zip(names, prompts, strict=True)], 0)
    more = [rng.integers(0, engine.vocab_size, 1 + DRAFTED, np.int32) for _ in names]
    batch = [
        VerifyRequest(name, np.concatenate([prompt, ids[:1]]), ids[1:])
        for name, prompt, ids in zip(names, prompts, more, strict=True)
    ]
    yield _pass(engine, batch, size // engine.block_size * engine.block_size)
    for name in names:
        engine.release(name)


def _pass(engine: VerifyEngine, batch: Sequence[VerifyRequest], cached: int) -> Sample:
    """Time a pass; `cached` is the number of cached tokens per request if the engine does not report it."""
    start_s = time.perf_counter()
    results = engine.verify(batch)
    took_s = time.perf_counter() - start_s
    found = [cached if result.cached is None else result.cached for result in results]
    totals = [len(request.prefix) + len(request.draft) for request in batch]
    return Sample(tuple(RequestWork(total - c, c) for total, c in zip(totals, found, strict=True)), took_s)
