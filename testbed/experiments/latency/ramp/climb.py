"""A load that rises in steps, under each draft window: the same requests, arrivals and random numbers for all windows.

Requests arrive as a Poisson process whose rate rises from step to step without a pause, so that requests left over from
one load burden the next. Fixed windows, 0 included, are compared with windows that the BS hints. In virtual time
(`virtual.py`) or in real time (`real.py`); `rows.py` compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
import numpy as np

from testbed.errors import BadInput
from testbed.experiments.deployment.load import Fleet, LoadRequest, open_loop, poisson_arrivals
from testbed.experiments.latency.ramp.config import HINTS, RampConfig
from testbed.experiments.results.claims import Count, Quantity
from testbed.ue.records import RequestRecord
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.hinted import Hinted

Told = Callable[[str], None]


class Answered(msgspec.Struct, frozen=True):
    """Result of one request.

    Raises:
        BadInput: parts that are more than the whole.
    """

    step: Count
    at_s: Quantity
    latency_s: Quantity
    """Time from its arrival."""
    tokens: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    rounds: Count
    drafted: Count
    accepted: Count
    rejections: Count
    """Windows that were not accepted as a whole."""

    def __post_init__(self) -> None:
        if self.accepted > self.drafted or self.rejections > self.rounds:
            raise BadInput("more tokens were accepted than drafted, or more windows rejected than there were rounds")


class RampRun(msgspec.Struct, frozen=True):
    """A ramp under one policy with one seed."""

    policy: str
    seed: int
    loads: list[Quantity]
    answered: list[Answered]
    """Requests in order of arrival."""
    switches: Count | None = None
    """Window changes by the BS's controllers, of all UEs together; None: not counted."""
    late: float | None = None
    """Time by which passes exceeded the pace, as a share of their time; None without a pace."""


def counts(config: RampConfig, loads: Sequence[float]) -> list[int]:
    """Requests of each step."""
    return [max(config.requests, math.ceil(load * config.step_s)) for load in loads]


def arrivals(loads: Sequence[float], numbers: Sequence[int], seed: int) -> list[tuple[int, float]]:
    """Step and arrival time of each request: a Poisson process with `numbers[i]` arrivals at `loads[i]`."""
    times = poisson_arrivals(loads, numbers, np.random.default_rng([seed, 0]))
    return list(zip(np.repeat(np.arange(len(loads)), numbers).tolist(), times, strict=True))


def policy_of(name: str, limit: int) -> WindowPolicy | None:
    """Window policy of a UE, by its name in a ramp; None: the target decodes alone."""
    if name == HINTS:
        return Hinted(FixedWindow(limit))
    return FixedWindow(int(name)) if int(name) else None


async def climb(fleet: Fleet, requests: Sequence[LoadRequest]) -> list[Answered]:
    """Send every request when it is due and wait for all; in order of arrival."""
    served = await open_loop(fleet, requests)
    return [_answered(request, *found) for request, found in zip(requests, served, strict=True)]


def even_loads(config: RampConfig, ceiling_rps: Callable[[str], float], told: Told) -> list[float]:
    """Even steps up to `reach` of the highest throughput of the fixed windows."""
    ceilings = {}
    for policy in map(str, config.windows):
        ceilings[policy] = ceiling_rps(policy)
        told(f"window {policy}: {ceilings[policy]:.3g} requests/s at most")
    top = config.reach * max(ceilings.values())
    return [float(f"{top * (i + 1) / config.steps:.3g}") for i in range(config.steps)]


def _answered(request: LoadRequest, record: RequestRecord, latency_s: float) -> Answered:
    drafts = [r for r in record.rounds if r.drafted]
    return Answered(
        request.step,
        request.at_s,
        latency_s,
        len(record.token_ids),
        len(record.rounds),
        sum(r.drafted for r in drafts),
        sum(r.accepted for r in drafts),
        sum(r.accepted < r.drafted for r in drafts),
    )
