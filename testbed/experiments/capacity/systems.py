"""The serving systems whose capacities are compared (WISP, Section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from testbed.bs.scheduling.registry import SCHEDULERS
from testbed.errors import BadInput
from testbed.ue.windows.base import WindowRule
from testbed.ue.windows.fixed import FIXED
from testbed.ue.windows.gain import GAIN
from testbed.ue.windows.predicted import BEFORE
from testbed.ue.windows.registry import HINTED


class ServingOrder(NamedTuple):
    """A scheduler, and how it is used."""

    kind: str
    """Name of the scheduler in the registry."""
    each_round: bool = False
    """Whether every round has a budget of its own (WISP, eq. 6); otherwise a response's slack is carried over."""
    protect: bool = True
    """Whether a pass is kept short for the sake of deadlines; otherwise passes are always filled."""


class KvMemory(NamedTuple):
    """Keys and values of sessions at the BS between rounds."""

    kept: bool = True
    """Whether they are kept, in an LRU prefix cache unless reserved; otherwise every round recomputes its prefix."""
    reserved: bool = False
    """Whether memory for prompt and response is reserved per request, so that nothing is evicted."""


FCFS, ROUND, FILLED, CARRY = (
    ServingOrder("fcfs"), ServingOrder("slo", each_round=True), ServingOrder("slo", each_round=True, protect=False),
    ServingOrder("slo"),
)  # fmt: skip
CACHED, RECOMPUTED, RESERVED = KvMemory(), KvMemory(kept=False), KvMemory(reserved=True)


@dataclass(frozen=True)
class System:
    """A serving system."""

    name: str
    about: str
    order: ServingOrder
    window: WindowRule | None
    """None: the target decodes alone."""
    memory: KvMemory = CACHED


SYSTEMS = {
    system.name: system
    for system in (
        System("wisp", "as in the paper: predicted windows, SLO scheduler, prefix cache", ROUND, BEFORE),
        System("fcfs-cache", "fixed windows, first come first served, prefix cache", FCFS, FIXED),
        System("sled", "fixed windows, first come first served, prefixes recomputed", FCFS, FIXED, RECOMPUTED),
        System("centralized", "the target decodes everything, continuous batching", FCFS, None, RESERVED),
        System("wisp-gain", "windows by expected gain, slack carried over between rounds", CARRY, GAIN),
        System("wisp-carry", "wisp, with slack carried over between rounds", CARRY, BEFORE),
        System("wisp-fixed", "wisp, with fixed windows", ROUND, FIXED),
        System("wisp-filled", "wisp, with passes always filled", FILLED, BEFORE),
        System("fixed-filled", "wisp-fixed, with passes always filled", FILLED, FIXED),
        System("fcfs-predicted", "fcfs-cache, with predicted windows", FCFS, BEFORE),
        System("fcfs-hinted", "fcfs-cache, with windows hinted by the BS, 0 included", FCFS, HINTED),
    )
}
CACHE = "-cache"


def system_names() -> list[str]:
    """Names that `system_of` takes."""
    return list(dict.fromkeys([*SYSTEMS, *(f"{kind}{CACHE}" for kind in SCHEDULERS)]))


def system_of(name: str) -> System:
    """The system of that name; `KIND-cache` is any registered scheduler with fixed windows and the prefix cache.

    Raises:
        BadInput: unknown; the message lists the known ones.
    """
    kind = name.removesuffix(CACHE)
    if name in SYSTEMS:
        return SYSTEMS[name]
    if kind == name or kind not in SCHEDULERS:
        raise BadInput(f"unknown system {name!r}; known: {', '.join(system_names())}")
    return System(name, f"fixed windows, {SCHEDULERS[kind].about}, prefix cache", ServingOrder(kind), FIXED)
