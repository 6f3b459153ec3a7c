"""Latency of a base station under open-loop load: Poisson arrivals that do not wait for answers.

Loads are spaced evenly between the throughput of one request at a time and the maximum throughput. The first and the
last requests of a load are discarded as warm-up and drain. A load at which requests pile up has no mean latency; it is
marked as saturated and left out of fits.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from testbed.errors import BadInput
from testbed.experiments.deployment.load import Fleet, LoadRequest, open_loop, poisson_arrivals
from testbed.intervals import percentile
from testbed.ue.records import RequestRecord

GROWTH = 1.5
"""Requests pile up if the last ones took this many times as long as those in the middle."""
FILLING, EMPTYING = 0.2, 0.1
"""Shares of a load's requests that are discarded as warm-up and drain: the BS is idle before and after the load."""
LEAST = 5
"""Minimum number of requests of a load, so that some are left after warm-up and drain."""
BEHIND = 0.75
"""Minimum ratio of answers to arrivals."""


class Served(msgspec.Struct, frozen=True):
    """One request of a load."""

    arrived_s: float
    latency_s: float
    """Time from its arrival, queueing at the UE included."""
    prompt_len: int
    tokens: int
    rounds: int
    accepted: int
    rejections: int
    batch_size: float
    """Mean over its passes."""


class LoadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one BS, without warm-up and drain; latencies in seconds."""

    rps: float
    """Measured arrival rate in requests a second."""
    k: int
    """Drafted tokens a round; 0: the target alone."""
    alpha: float | None
    """Measured: accepted / (accepted + first rejections); None without drafts."""
    prefill: float
    """Mean tokens of a prompt."""
    decode: float
    """Mean tokens of an output."""
    requests: int
    latency_s: float
    latency_p95_s: float | None
    """None, like `latency_p99_s`: too few requests."""
    latency_p99_s: float | None
    batch_size: float
    saturated: bool
    imposed: float | None = None
    """Acceptance rate imposed on replayed drafts; None: real drafts, or none."""
    repeat: int | None = None
    """None: all repeats together."""


async def synchronous_rps(fleet: Fleet, requests: Sequence[LoadRequest]) -> float:
    """Requests a second, one after another."""
    start_s = fleet.clock.time()
    for number, request in enumerate(requests):
        await fleet.decode(number, request)
    return len(requests) / (fleet.clock.time() - start_s)


def loads(low_rps: float, high_rps: float, count: int) -> list[float]:
    """`count` loads evenly between the two, neither included.

    Raises:
        BadInput: no load asked for, or no room between the two.
    """
    if count < 1:
        raise BadInput(f"give one load or more, not {count}")
    if not 0 < low_rps < high_rps:
        raise BadInput(
            f"the throughput of many requests at once ({high_rps:.3g}/s) is not above that of one at a time "
            f"({low_rps:.3g}/s): there is no load between the two"
        )
    return [low_rps + (high_rps - low_rps) * i / (count + 1) for i in range(1, count + 1)]


async def offer(fleet: Fleet, requests: Sequence[LoadRequest], rps: float, seed: int) -> list[Served]:
    """Send all requests at the times of a Poisson process of rate `rps`; results in order of arrival."""
    times = poisson_arrivals([rps], [len(requests)], np.random.default_rng(seed))
    requests = [request._replace(at_s=at_s) for request, at_s in zip(requests, times, strict=True)]
    served = await open_loop(fleet, requests)
    return [_served(record, asked.at_s, took_s) for asked, (record, took_s) in zip(requests, served, strict=True)]


def _served(record: RequestRecord, arrived_s: float, latency_s: float) -> Served:
    drafts = [r for r in record.rounds if r.drafted]
    return Served(
        arrived_s,
        latency_s,
        record.prompt_len,
        len(record.token_ids),
        len(record.rounds),
        sum(r.accepted for r in drafts),
        sum(r.accepted < r.drafted for r in drafts),
        statistics.fmean(r.batch_size for r in record.rounds),
    )


def point(
    repeats: Sequence[Sequence[Served]], k: int, imposed: float | None = None, repeat: int | None = None
) -> LoadPoint:
    """Results of a load, over the given repeats together.

    Raises:
        BadInput: too few requests.
    """
    parts = [steady(served) for served in repeats]
    served = [each for part, _ in parts for each in part]
    latencies = np.array([s.latency_s for s in served])
    accepted, rejections = sum(s.accepted for s in served), sum(s.rejections for s in served)
    return LoadPoint(
        rps=len(served) / sum(span_s for _, span_s in parts),
        k=k,
        alpha=accepted / (accepted + rejections) if accepted + rejections else None,
        prefill=statistics.fmean(s.prompt_len for s in served),
        decode=statistics.fmean(s.tokens for s in served),
        requests=len(served),
        latency_s=float(latencies.mean()),
        latency_p95_s=percentile("latency_p95_s", latencies),
        latency_p99_s=percentile("latency_p99_s", latencies),
        batch_size=statistics.fmean(s.batch_size for s in served),
        saturated=2 * sum(map(piled_up, repeats)) >= len(repeats),
        imposed=imposed,
        repeat=repeat,
    )


def steady(served: Sequence[Served]) -> tuple[list[Served], float]:
    """Requests without warm-up and drain, and the seconds from the first of them to the first of the drain.

    Raises:
        BadInput: fewer than `LEAST` requests.
    """
    if len(served) < LEAST:
        raise BadInput(f"{len(served)} requests have no steady latency; a load needs at least {LEAST}")
    ordered = sorted(served, key=lambda s: s.arrived_s)
    first, end = round(FILLING * len(ordered)), len(ordered) - max(1, round(EMPTYING * len(ordered)))
    return ordered[first:end], ordered[end].arrived_s - ordered[first].arrived_s


def piled_up(served: Sequence[Served]) -> bool:
    """Whether requests arrived faster than they were answered.

    Two criteria: the last third took `GROWTH` times as long as the middle third, and significantly longer (the first
    third meets an idle BS and is faster at any load; requests that are in progress together are correlated and count as
    one sample); or between the end of the first third and the last arrival fewer than `BEHIND` of the arrivals were
    answered.
    """
    third = len(served) // 3
    if third < 3:
        return False
    ordered = sorted(served, key=lambda s: s.arrived_s)
    middle, last = ([s.latency_s for s in part] for part in (ordered[third:-third], ordered[-third:]))
    together = 1 + statistics.fmean(middle) * len(ordered) / (ordered[-1].arrived_s - ordered[0].arrived_s)
    errors = [statistics.stdev(part) * (together / len(part)) ** 0.5 for part in (middle, last)]
    grown = statistics.fmean(last) - statistics.fmean(middle)
    if statistics.fmean(last) > GROWTH * statistics.fmean(middle) and grown > 2 * float(np.hypot(*errors)):
        return True
    more = _under_way(ordered, ordered[-1].arrived_s) - _under_way(ordered, ordered[third - 1].arrived_s)
    return more > (1 - BEHIND) * (len(ordered) - third)


def _under_way(served: Sequence[Served], at_s: float) -> int:
    return sum(s.arrived_s <= at_s < s.arrived_s + s.latency_s for s in served)


def batches(requests: Iterable[LoadRequest], sizes: Iterable[int]) -> Iterator[list[LoadRequest]]:
    """Requests in groups of these sizes, each used once, so that none is in the BS's prefix cache.

    Raises:
        BadInput: there are too few.
    """
    source = iter(requests)
    for size in sizes:
        group = list(itertools.islice(source, size))
        if len(group) < size:
            raise BadInput("too few prompts for these loads; choose a larger data set or fewer requests per load")
        yield group
