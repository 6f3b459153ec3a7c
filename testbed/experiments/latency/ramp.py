"""A load that climbs step by step, and what each window does under it: the same requests, arrivals and luck for all.

Requests arrive as a Poisson process whose rate rises after every so many of them, without a pause: what a window leaves
unfinished at one load burdens the next. Fixed windows, 0 among them, stand beside windows that the BS hints. In virtual
time (`ramp_virtual.py`) or for real (`ramp_real.py`); `ramp_rows.py` compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np

from testbed.bs.scheduling.window_hints import window_config
from testbed.config import Config
from testbed.errors import BadInput
from testbed.experiments.deployment.load import Fleet, LoadRequest, open_loop, poisson_arrivals
from testbed.ue.records import RequestRecord
from testbed.ue.windows.rules import FixedWindow, Hinted, WindowPolicy

HINTS = "hinted"
"""Name of the policy that goes by the BS's hints; the others are named by their window."""
Told = Callable[[str], None]


class RampConfig(Config, frozen=True, kw_only=True):
    """What `testbed latency ramp` does.

    Raises:
        BadInput: values that cannot be.
    """

    kind: Literal["virtual", "real"] = "virtual"
    windows: tuple[int, ...] = (0, 1, 2, 4, 6, 8)
    """Fixed ones to compare with; 0: the target alone."""
    controller: str = "max_window=8"
    """As of `bs serve --window-controller`."""
    loads: tuple[float, ...] = ()
    """Requests a second, one step after the other; none: `steps` of them below what the BS can do."""
    steps: int = 6
    reach: float = 0.85
    """Last step of such loads, as a share of the highest throughput of any of the fixed windows."""
    requests: int = 300
    """Of each step, at least."""
    step_s: float = 30.0
    """Of each step, at least, as arrivals have it."""
    settle: float = 0.25
    """Share of a step's requests, the first ones, that do not count: estimates and queues follow the load."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of arrivals, prompts, and of which drafted tokens are right."""
    ues: int = 16
    """They take requests in turn, each under its own controller."""
    alpha: float = 0.758
    """Acceptance rate imposed on drafts; virtual: WISP's, as in `testbed capacity`."""
    draft_ms: float | None = None
    """Drafting a token; None: as the profile has it, real: 0."""

    # ------------------------------------------------------------ virtual

    profile: str = "a100-qwen3-32b-appendix"
    network_ms: float = 40.0
    """Of a round, there and back."""
    network_spread: float = 0.5
    """A round's lies uniformly within so much of it, either way, as in `testbed capacity`. At 0 UEs that were served
    together come back together to the microsecond, which favours windows that all UEs share."""
    prompt: tuple[int, int] = (50, 250)
    """Tokens, uniform, both ends included."""
    response: tuple[int, int] = (32, 64)
    max_batch: int = 256
    """Requests of a pass."""

    # ------------------------------------------------------------ real

    engine: str = "vllm"
    model: str | None = None
    """None: the bundled target."""
    dtype: str = "float32"
    pace: str | None = None
    """As of `bs serve --pace`; None: the machine's own."""
    dataset: str = "bundled:test"
    max_tokens: int = 64

    def __post_init__(self) -> None:
        for window in self.windows:
            if window:
                FixedWindow(window)
        if not self.windows or min(self.windows) < 0 or len(set(self.windows)) < len(self.windows):
            raise BadInput("give one window or more, each 0 or more and once")
        window_config(self.controller)
        if list(self.loads) != sorted(set(self.loads)) or not all(0 < load < math.inf for load in self.loads):
            raise BadInput("loads are positive requests a second, each higher than the one before")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise BadInput("give one seed or more, each 0 or more and once")
        for name, low, high in (
            ("alpha", 0, 1),
            ("settle", 0, 0.9),
            ("reach", 0.05, 2),
            ("network_ms", 0, 1e5),
            ("network_spread", 0, 1),
        ):
            if not low <= getattr(self, name) <= high:
                raise BadInput(f"{name.replace('_', '-')} must lie in [{low:g}, {high:g}], not {getattr(self, name):g}")
        for name, least in (("requests", 8), ("ues", 1), ("steps", 1), ("max_batch", 1), ("max_tokens", 1)):
            if getattr(self, name) < least:
                raise BadInput(f"{name.replace('_', '-')} must be at least {least}, not {getattr(self, name)}")
        if not 0 <= self.step_s < 1e6:
            raise BadInput(f"step-s must be 0 or more, not {self.step_s:g}")
        if self.draft_ms is not None and not 0 <= self.draft_ms < 1e5:
            raise BadInput(f"draft-ms must not be negative, not {self.draft_ms:g}")
        for name in ("prompt", "response"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise BadInput(f"{name} bounds must be 1 or more and in order, not {low} to {high}")

    @property
    def policies(self) -> list[str]:
        """Fixed windows by name, and the hinted ones last."""
        return [*map(str, self.windows), HINTS]

    @property
    def limit(self) -> int:
        """The most that a UE under hints drafts."""
        return window_config(self.controller).max_window


class Answered(msgspec.Struct, frozen=True):
    """What became of one."""

    step: int
    at_s: float
    latency_s: float
    """From its arrival."""
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    rejections: int
    """Windows that did not stay whole."""


class RampRun(msgspec.Struct, frozen=True):
    """A ramp under one policy with one seed."""

    policy: str
    seed: int
    loads: list[float]
    answered: list[Answered]
    """In order of arrival."""
    switches: int | None = None
    """Changes of windows by the BS's controllers, all UEs together; None where it does not tell."""
    late: float | None = None
    """By how much of their time passes exceeded the pace; None without one."""


def counts(config: RampConfig, loads: Sequence[float]) -> list[int]:
    """Requests of each step."""
    return [max(config.requests, math.ceil(load * config.step_s)) for load in loads]


def arrivals(loads: Sequence[float], numbers: Sequence[int], seed: int) -> list[tuple[int, float]]:
    """Step and arrival time of each request: a Poisson process with `numbers[i]` arrivals at `loads[i]`."""
    times = poisson_arrivals(loads, numbers, np.random.default_rng([seed, 0]))
    return list(zip(np.repeat(np.arange(len(loads)), numbers).tolist(), times, strict=True))


def policy_of(name: str, limit: int) -> WindowPolicy | None:
    """A UE's window policy by a ramp's name."""
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
