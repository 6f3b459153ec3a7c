"""The registry of schedulers.

An installed package adds a scheduler by an entry point in the group `testbed.schedulers`, which names a
`SchedulerEntry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from testbed.bs.scheduling.base import Fcfs, Scheduler
from testbed.bs.scheduling.slo import Slo
from testbed.bs.scheduling.slo_rules import REPAIRED, Rules
from testbed.config import ServeConfig
from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients
from testbed.registry import Registry


@dataclass(frozen=True)
class SchedulerSetting:
    """Parts of a scheduler; each takes what it needs."""

    max_requests: int
    """Requests of one pass."""
    max_tokens: int
    """New tokens of one pass."""
    coefficients: Coefficients | None = None
    """Pass times (eq. 19); never None for an entry that needs them."""
    kv_tokens: int | None = None
    """Tokens whose keys and values one pass may need; None: any."""
    engine_tokens: int | None = None
    """New tokens of one pass of the engine; None: any."""
    engine_sessions: int | None = None
    """Sessions whose keys and values the engine holds; None: any."""
    chunk_tokens: int | None = None
    """New tokens of a prefix that one pass takes; None: all, or what the engine takes."""
    own_tokens: int | None = None
    """Tokens of a pass up to which one UE's requests without a guarantee are taken beside others; None: any."""
    protect: bool = True
    """Whether passes stay small enough to meet deadlines."""
    cuts: bool = False
    """Whether prompts may be cut into pieces as deadlines require."""
    rules: Rules = REPAIRED
    """Corrections of Algorithm 1."""
    guard_s: float | None = None
    """δ of Algorithm 1; None: from the waiting requests."""
    committed: str = "geometric"
    """Estimate of a round's tokens."""
    worths: Mapping[bytes, float] = field(default_factory=dict)
    """Worth of a token of each UE, relative to others; may change between passes. UEs that it lacks: 1."""


@dataclass(frozen=True, kw_only=True)
class SchedulerEntry:
    """A scheduler that can be chosen by name."""

    kind: str
    about: str
    """One line for help screens."""
    make: Callable[[SchedulerSetting], Scheduler]
    needs_coefficients: bool = False
    """Whether it plans by pass times, so that the base station estimates them."""
    admits: bool = False
    """Whether it keeps token-speed guarantees, so that sessions are refused that would break them."""
    weighs: bool = False
    """Whether it orders requests by utility, and takes `SchedulerSetting.worths`."""
    options: tuple[str, ...] = ()
    """Fields of `ServeConfig` that are for it: schedulers that do not name them refuse them."""


def _slo(setting: SchedulerSetting) -> Scheduler:
    times, most = setting.coefficients, setting.chunk_tokens
    assert times is not None
    return Slo(
        coefficients=times,
        max_requests=setting.max_requests,
        max_tokens=min(setting.max_tokens, setting.engine_tokens or setting.max_tokens),
        kv_tokens=setting.kv_tokens,
        max_sessions=setting.engine_sessions,
        protect=setting.protect,
        cuts=setting.cuts,
        hold_s=None if most is None else times.alone_s(most, 0),
        rules=setting.rules,
        guard_s=setting.guard_s,
        committed=setting.committed,
        own_tokens=setting.own_tokens,
        worths=setting.worths,
    )


SCHEDULERS = Registry(
    "scheduler",
    "testbed.schedulers",
    SchedulerEntry(
        kind="fcfs",
        about="first come, first served",
        make=lambda setting: Fcfs(setting.max_requests, setting.max_tokens, setting.chunk_tokens, setting.own_tokens),
    ),
    SchedulerEntry(
        kind="slo",
        about="keeps token-speed guarantees (WISP, Algorithm 1)",
        make=_slo,
        needs_coefficients=True,
        admits=True,
        weighs=True,
        options=("coefficients",),
    ),
    of=SchedulerEntry,
)


def check_options(config: ServeConfig) -> None:
    """Refuse options that are for another scheduler; the window controller takes coefficients, too.

    Raises:
        BadInput: an unknown scheduler, or an option that it does not take.
    """
    chosen = SCHEDULERS.choose(config.scheduler)
    shared = {"coefficients"} if config.window_controller is not None else set()
    for name in dict.fromkeys(name for entry in SCHEDULERS.values() for name in entry.options):
        if name not in shared and name not in chosen.options and getattr(config, name) is not None:
            takers = " or ".join(entry.kind for entry in SCHEDULERS.values() if name in entry.options)
            raise BadInput(f"--{name.replace('_', '-')} goes with --scheduler {takers}, not {chosen.kind}")


def scheduler(kind: str, setting: SchedulerSetting) -> Scheduler:
    """The scheduler of that kind.

    Raises:
        BadInput: unknown kind, or a value out of range.
    """
    entry = SCHEDULERS.choose(kind)
    if entry.needs_coefficients and setting.coefficients is None:
        raise BadInput(f"scheduler {kind} needs the coefficients of verification passes (`testbed estimator fit`)")
    return entry.make(setting)
