"""A base station under open-loop load: Poisson arrivals that do not wait for answers, and what latency does.

Loads lie evenly between what one request at a time gets through and what many at once do. Of a load's requests those
count that neither come while the BS fills up nor have nobody coming after them. A load at which requests pile up has no
mean latency; it is marked and left out of fits.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from testbed.errors import BadInput
from testbed.experiments.deployment.load import Fleet, LoadRequest, open_loop, poisson_arrivals
from testbed.ue.records import RequestRecord

GROWTH = 1.5
"""Requests that came last took this many times as long as those in the middle: they pile up."""
FILLING, EMPTYING = 0.2, 0.1
"""Shares of a load's requests, the first and the last ones, that do not count: the BS was idle before, and is after."""
LEAST = 5
"""Requests of a load; of fewer, none may be left that counts."""
BEHIND = 0.75
"""Share of the arrivals that answers must have kept up with."""


class Served(msgspec.Struct, frozen=True):
    """One request of a load."""

    arrived_s: float
    latency_s: float
    """From its arrival, whether or not the UE was busy."""
    prompt_len: int
    tokens: int
    rounds: int
    accepted: int
    rejections: int
    batch_size: float
    """Mean over its passes."""


class LoadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one BS, of the requests that count; latencies in seconds."""

    rps: float
    """Requests a second as they came."""
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
    latency_p95_s: float
    latency_p99_s: float
    batch_size: float
    saturated: bool


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
            f"many requests at once ({high_rps:.3g}/s) get no more done than one at a time ({low_rps:.3g}/s): "
            "there is no load between the two"
        )
    return [low_rps + (high_rps - low_rps) * i / (count + 1) for i in range(1, count + 1)]


async def offer(fleet: Fleet, requests: Sequence[LoadRequest], rps: float, seed: Sequence[int]) -> list[Served]:
    """Send all requests at the times of a Poisson process of rate `rps`; what came of each, in order of arrival."""
    times = poisson_arrivals([rps], [len(requests)], np.random.default_rng([*seed, len(requests)]))
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


def point(repeats: Sequence[Sequence[Served]], k: int) -> LoadPoint:
    """What a load came to, over all its repeats together.

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
        latency_p95_s=float(np.quantile(latencies, 0.95)),
        latency_p99_s=float(np.quantile(latencies, 0.99)),
        batch_size=statistics.fmean(s.batch_size for s in served),
        saturated=2 * sum(map(piled_up, repeats)) >= len(repeats),
    )


def steady(served: Sequence[Served]) -> tuple[list[Served], float]:
    """Requests that count, and the seconds from the first of them to the first after them.

    Raises:
        BadInput: fewer than `LEAST` requests.
    """
    if len(served) < LEAST:
        raise BadInput(f"{len(served)} requests have no steady latency: give a load {LEAST} or more")
    ordered = sorted(served, key=lambda s: s.arrived_s)
    first, end = round(FILLING * len(ordered)), len(ordered) - max(1, round(EMPTYING * len(ordered)))
    return ordered[first:end], ordered[end].arrived_s - ordered[first].arrived_s


def piled_up(served: Sequence[Served]) -> bool:
    """Whether requests came faster than they were answered.

    Either the last third of them took `GROWTH` times as long as the middle third, and longer than its spread explains
    (the first third meets a BS that was idle, and is faster at any load; requests under way together share their luck,
    and say no more than one), or from the end of the first third to the last arrival so many more were under way in the
    end that answers kept up with less than `BEHIND` of the arrivals.
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
    """Requests in groups of these sizes, none twice: what was seen before would be in the BS's prefix cache.

    Raises:
        BadInput: there are too few.
    """
    source = iter(requests)
    for size in sizes:
        group = list(itertools.islice(source, size))
        if len(group) < size:
            raise BadInput("there are too few prompts for these loads; give a larger data set or fewer requests a load")
        yield group
