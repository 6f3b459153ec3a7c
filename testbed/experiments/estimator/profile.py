"""Measures verification passes on a real engine, following the plan of WISP Appendix C scaled to the machine.

Every prompt is unique, since a repeated one would be served from the prefix cache. Cached tokens of a request are
cached by an earlier pass that is not measured.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.bs.scheduling.estimator_fit import Sample, fit, regime, score
from testbed.errors import BadInput, TestbedError
from testbed.optim.pass_time import NAMES, RequestWork, features

CATEGORIES = ("compute", "memory", "compute-random", "memory-random", "mixed")
DRAFTED = 5
"""Draft window of a new prompt."""
NEW = (1, 5, 10, 20, 50, 100)
"""New tokens of a follow-up."""
LARGEST = 2000
"""Maximum tokens of a batch or sequence in the paper; `plan` scales everything from there."""
LEAST = 100
UNSTEADY = 0.1
"""Coefficient of variation above which a configuration is measured again."""
TRIES = 3
"""Maximum number of attempts per configuration; the one with the least variation counts."""
BLOCK = 32
"""Block size of vLLM's prefix cache on a CPU, in tokens."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Configuration:
    """A batch to measure."""

    category: str
    works: tuple[RequestWork, ...]


@dataclass(frozen=True)
class MeasuredBatch:
    """A batch with its measured times, in order of the repeats."""

    configuration: Configuration
    held_out: bool
    times_s: tuple[float, ...] = ()

    @property
    def sample(self) -> Sample:
        """The batch with its median time."""
        return Sample(self.configuration.works, statistics.median(self.times_s))

    @property
    def variation(self) -> float:
        """Coefficient of variation: standard deviation over mean."""
        return statistics.pstdev(self.times_s) / statistics.fmean(self.times_s)


def plan(largest: int = LARGEST, seed: int = 0, thin: int = 1) -> list[MeasuredBatch]:
    """Unmeasured batches of Appendix C: 123 configurations for the fit and 50 for validation.

    Args:
        largest: maximum tokens, instead of the paper's 2000.
        thin: keep every `thin`-th configuration of each category; 1: all.

    Raises:
        BadInput: a value out of range.
    """
    if largest < LEAST or thin < 1:
        raise BadInput(f"a plan needs {LEAST} tokens or more, and thin of at least 1")
    rng, unseen = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    train = [
        *(Configuration("compute", works) for works in _compute(largest, rng)),
        *(Configuration("memory", works) for works in _memory(largest)),
        *_random(largest, rng, 15, 15, 20),
    ]
    test = _random(largest, unseen, 15, 15, 20)
    seen = {configuration.works for configuration in train}
    fresh = [configuration for configuration in test if configuration.works not in seen]
    chosen = [MeasuredBatch(c, held_out=False) for c in _thinned(train, thin)]
    return chosen + [MeasuredBatch(c, held_out=True) for c in _thinned(fresh, thin)]


def _thinned(configurations: Sequence[Configuration], thin: int) -> Iterator[Configuration]:
    for category in CATEGORIES:
        yield from [c for c in configurations if c.category == category][::thin]


def _compute(largest: int, rng: np.random.Generator) -> Iterator[tuple[RequestWork, ...]]:
    """Batches without cached tokens: 0.6 to 1 times `largest` in one to four prompts."""
    for share in (0.6, 0.7, 0.8, 0.9, 1.0):
        total = round(share * largest)
        for parts in (1, 2, 4):
            yield tuple(RequestWork(total // parts, 0) for _ in range(parts))
        for _ in range(2):
            cuts = np.sort(rng.choice(np.arange(20, total - 20), 3, replace=False))
            sizes = np.diff([0, *cuts.tolist(), total])
            yield tuple(RequestWork(max(DRAFTED + 1, int(size)), 0) for size in sizes)


def _memory(largest: int) -> Iterator[tuple[RequestWork, ...]]:
    for new, share, size in itertools.product(NEW, (0.25, 0.5, 0.75, 1.0), (1, 4)):
        yield (RequestWork(new, max(1, round(share * largest) - new)),) * size


def _random(largest: int, rng: np.random.Generator, compute: int, memory: int, mixed: int) -> list[Configuration]:
    def prompt(parts: int) -> RequestWork:
        return RequestWork(int(rng.integers(round(0.6 * largest), largest + 1)) // parts, 0)

    def follow_up() -> RequestWork:
        new = int(rng.integers(1, 30))
        return RequestWork(new, int(rng.integers(largest // 4, largest)) - new)

    def split() -> tuple[RequestWork, ...]:
        parts = int(rng.integers(1, 5))
        return tuple(prompt(parts) for _ in range(parts))

    def some(most: int) -> tuple[RequestWork, ...]:
        return tuple(follow_up() for _ in range(int(rng.integers(1, most + 1))))

    def both() -> tuple[RequestWork, ...]:
        cold = tuple(prompt(int(rng.integers(1, 5))) for _ in range(int(rng.integers(1, 3))))
        return cold + some(6)

    return [
        *(Configuration("compute-random", split()) for _ in range(compute)),
        *(Configuration("memory-random", some(8)) for _ in range(memory)),
        *(Configuration("mixed", both()) for _ in range(mixed)),
    ]


class PassBench:
    """Times batches of unique prompts.

    Raises (all methods):
        EngineError: a pass failed.
    """

    def __init__(self, engine: VerifyEngine, seed: int, clock: Callable[[], float] | None = None) -> None:
        self._engine, self._rng = engine, np.random.default_rng([seed, 2])
        self._clock = clock or (lambda: time.perf_counter())
        self._seen: set[bytes] = set()
        self._names = itertools.count()

    def time_s(self, works: Sequence[RequestWork]) -> float:
        """Duration of one pass, in seconds."""
        batch = [self._request(work) for work in works]
        primed = [
            replace(request, prefix=request.prefix[: work.cached], draft=request.draft[:0])
            for request, work in zip(batch, works, strict=True)
            if work.cached
        ]
        try:
            if primed:
                self._engine.verify(primed)
            start_s = self._clock()
            self._engine.verify(batch)
            return self._clock() - start_s
        finally:
            for request in batch:
                self._engine.release(request.session)

    def _request(self, work: RequestWork) -> VerifyRequest:
        ids = self._unique(work.cached + work.new)
        drafted = work.new - 1 if work.cached else min(DRAFTED, work.new - 1)
        end = len(ids) - drafted
        return VerifyRequest(f"profile/{next(self._names)}", ids[:end], ids[end:])

    def _unique(self, count: int) -> NDArray[np.int32]:
        """Random ids whose first 16 are unique, so that no prompt is found in the prefix cache."""
        ids: NDArray[np.int32] = self._rng.integers(0, self._engine.vocab_size, count).astype(np.int32)
        key = ids[:16].tobytes()
        if key in self._seen:
            raise TestbedError("a prompt was repeated and could be in the prefix cache; profile with another seed")
        self._seen.add(key)
        return ids


def measure(
    engine: VerifyEngine,
    planned: Sequence[MeasuredBatch],
    *,
    repeats: int,
    warmups: int,
    seed: int,
    progress: Progress,
    keep: Callable[[MeasuredBatch], None] = lambda _: None,
) -> list[MeasuredBatch]:
    """Time every configuration, in random order, each after its own warm-up passes.

    Args:
        keep: called with each batch as soon as it is measured.

    Raises:
        BadInput: invalid repeats or warmups, or sequences too long for the engine.
        TestbedError: a prompt was repeated.
    """
    if repeats < 1 or warmups < 0:
        raise BadInput(f"repeats must be at least 1 and warmups not negative, not {repeats} and {warmups}")
    longest = max(work.cached + work.new for one in planned for work in one.configuration.works)
    if longest + 1 > engine.max_positions:
        raise BadInput(
            f"sequences of {longest} tokens exceed the target's limit of {engine.max_positions - 1}; give --largest"
        )
    bench, done = PassBench(engine, seed), {}
    order = np.random.default_rng([seed, 3]).permutation(len(planned)).tolist()
    for count, index in enumerate(order):
        progress(count, len(planned), planned[index].configuration.category)
        done[index] = _steadiest(bench, planned[index], warmups, repeats)
        keep(done[index])
    progress(len(planned), len(planned), "done")
    return [done[index] for index in range(len(planned))]


def _steadiest(bench: PassBench, planned: MeasuredBatch, warmups: int, repeats: int) -> MeasuredBatch:
    """Measure one configuration, again if its repeats vary too much; returns the attempt with the least variation."""
    tries: list[MeasuredBatch] = []
    while len(tries) < TRIES and not (tries and tries[-1].variation <= UNSTEADY):
        times = [bench.time_s(planned.configuration.works) for _ in range(warmups + repeats)]
        tries.append(replace(planned, times_s=tuple(times[warmups:])))
    return min(tries, key=lambda each: each.variation)


def report(measured: Sequence[MeasuredBatch], seed: int = 0) -> dict[str, Any]:
    """Fit to the training passes, its scores on unseen passes, and the scores with one more term.

    Raises:
        BadInput: too few passes for a fit.
    """
    train = [one.sample for one in measured if not one.held_out]
    test = [one.sample for one in measured if one.held_out]
    found = fit(train, seed)
    kinds = sorted({regime(sample) for sample in test})
    return {
        **found.document(),
        "unseen": {
            **vars(score(found.coefficients, test)),
            "regimes": {
                kind: vars(score(found.coefficients, [s for s in test if regime(s) == kind])) for kind in kinds
            },
        },
        "missing_terms": [_with_term(name, term, train, test) for name, term in TERMS.items()],
        "variation_p50": statistics.median(one.variation for one in measured),
        "variation_max": max(one.variation for one in measured),
    }


TERMS: dict[str, Callable[[Sequence[RequestWork]], float]] = {
    "none": lambda batch: 0.0,
    "requests": len,
    "followup_requests": lambda batch: sum(work.cached > 0 for work in batch),
    "judged_rows": lambda batch: sum(work.new if work.cached else min(DRAFTED, work.new - 1) + 1 for work in batch),
    "block_rest": lambda batch: sum(work.cached % BLOCK for work in batch),
    "cold_interactions": lambda batch: sum(work.new**2 for work in batch if not work.cached),
    "longest_sequence": lambda batch: max(work.cached + work.new for work in batch),
}
"""Possible costs of a pass that eq. 19 omits: per request, the head's rows, cached tokens beyond the last full block
(recomputed by an engine whose sessions do not keep their blocks), attention within an uncached prompt, padding."""


def _with_term(
    name: str, term: Callable[[Sequence[RequestWork]], float], train: Sequence[Sample], test: Sequence[Sample]
) -> dict[str, Any]:
    """R² and MAPE on unseen passes of a least-squares fit with one more term."""

    def table(samples: Sequence[Sample]) -> NDArray[np.float64]:
        return np.array([[*features(sample.batch), term(sample.batch)] for sample in samples])

    x, y = table(train), np.array([sample.latency_s for sample in train])
    scale = np.maximum(x.max(axis=0), 1e-12)
    found = np.linalg.lstsq(x / scale, y, rcond=None)[0] / scale
    truth = np.array([sample.latency_s for sample in test])
    error = table(test) @ found - truth
    total = float(((truth - truth.mean()) ** 2).sum())
    return {
        "term": name,
        "r2": 1 - float((error**2).sum()) / total if total else None,
        "mape": float((np.abs(error) / truth).mean()),
        "seconds": float(found[len(NAMES)]) if name != "none" else 0.0,
    }


def csv_lines(measured: Sequence[MeasuredBatch]) -> list[str]:
    """Lines of the CSV file for `testbed estimator fit`, with columns for the plan; one row per request."""
    lines = ["batch,new_tokens,cached_tokens,latency_s,category,held_out,variation"]
    for number, one in enumerate(measured):
        tail = f"{one.sample.latency_s:.9f},{one.configuration.category},{int(one.held_out)},{one.variation:.4f}"
        lines += [f"{number},{work.new},{work.cached},{tail}" for work in one.configuration.works]
    return lines
