"""Configuration of `testbed capacity --real`: its systems, its load, and the links of its UEs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from testbed.bs.scheduling.registry import SCHEDULERS, SchedulerEntry
from testbed.channel.radio.shares import read_shares
from testbed.channel.spec import ChannelSpec, parse_channel
from testbed.config import Config
from testbed.errors import BadInput
from testbed.experiments.deployment.links import radio_section
from testbed.ue.windows.base import MAX_WINDOW, WindowRule
from testbed.ue.windows.fixed import FIXED
from testbed.ue.windows.gain import GAIN
from testbed.ue.windows.predicted import BEFORE


class RealSystem(NamedTuple):
    """A serving system of real processes."""

    order: SchedulerEntry
    rule: WindowRule | None
    """Window rule of the UEs; None: the target decodes alone."""
    prefix_cache: bool = True
    window: int | None = None
    """K of fixed windows; None: the configuration's."""


FCFS, SLO = SCHEDULERS["fcfs"], SCHEDULERS["slo"]
SYSTEMS = {
    "wisp": RealSystem(SLO, BEFORE),
    "wisp-gain": RealSystem(SLO, GAIN),
    "wisp-fixed": RealSystem(SLO, FIXED),
    "fcfs-cache": RealSystem(FCFS, FIXED),
    "fcfs-predicted": RealSystem(FCFS, BEFORE),
    "fcfs-gain": RealSystem(FCFS, GAIN),
    "sled": RealSystem(FCFS, FIXED, prefix_cache=False),
    "centralized": RealSystem(FCFS, None),
}
"""Systems by name; `fixed-K` is `fcfs-cache` with K tokens."""
MOST_UES = 64


class RealConfig(Config, frozen=True, kw_only=True):
    """What `testbed capacity --real` does.

    Raises:
        BadInput: values that cannot be.
    """

    systems: tuple[str, ...] = ("wisp", "fcfs-cache", "sled", "centralized")
    ues: tuple[int, ...] = (16,)
    """Processes at once, one load each."""
    mix: dict[float, int] = msgspec.field(default_factory=lambda: {2.0: 1, 4.0: 1, 6.0: 1, 8.0: 1})
    """Shares of UEs by speed, in units of `speed_scale` tokens a second."""
    speed_scale: float | None = None
    """None: the guarantees add up to `load` of what fcfs-cache carries at this number of UEs, measured first."""
    load: float = 0.6
    """That of the virtual mix of 130 UEs, whose guarantees add up to 650 tokens/s; fcfs-cache carries 1090 there."""
    epsilon: float = 0.05
    repeats: int = 1
    seed: int = 0
    warmup_s: float = 4.0
    horizon_s: float = 20.0
    """Responses that begin within it, after the warm-up, are judged."""
    tail_s: float = 3.0
    """The load goes on for so long after it."""
    draft_tps: float = 500.0
    """Tokens a second of a UE's drafter."""
    channel: str = "kind=none"
    """Links of the UEs, as in `testbed demo`: none (loopback), proxy, or a trace via proxy. With `shares`, the n-th UE
    has the link of the n-th share; all others have links of their own with equal parameters."""
    radio: str | None = None
    """A cell's file, in whose slots the UEs' messages are sent instead."""
    shares: str | None = None
    """JSON of `testbed optim bandwidth`: the n-th UE's weight in the radio is the n-th share."""
    window: int = 5
    """K of fixed windows, and K_max of all other rules."""
    predictor: str | None = None
    """Directory; None: the bundled one."""
    max_batch: int = 2
    """Requests of a pass."""
    coefficients: str | None = None
    """Coefficients of scheduler slo: see `bs serve --coefficients`; None: the BS measures them."""
    admission: bool = False
    """Whether scheduler slo refuses UEs: a comparison at one load serves all of them."""
    prompts: int = 400
    """Recorded; they are dealt out to the UEs, each once before any comes again."""
    dataset: str = "bundled:test"
    max_tokens: int = 256

    def __post_init__(self) -> None:
        for name in self.systems:
            real_system(name)
        if not self.systems or len(set(self.systems)) < len(self.systems):
            raise BadInput("give one system or more, each once")
        if not self.ues or not all(1 <= n <= MOST_UES for n in self.ues):
            raise BadInput(f"UE processes: 1 to {MOST_UES}, not {', '.join(map(str, self.ues))}")
        if not self.mix or any(speed <= 0 or share < 1 for speed, share in self.mix.items()):
            raise BadInput("a mix has positive speeds, each with a share of 1 or more")
        for name in ("speed_scale", "load", "horizon_s", "draft_tps"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise BadInput(f"{name.replace('_', '-')} must be positive, not {value:g}")
        for name, low, high in (
            ("epsilon", 0, 1), ("warmup_s", 0, 1e4), ("tail_s", 0, 1e4), ("repeats", 1, 1000),
            ("seed", 0, 2**31), ("window", 1, MAX_WINDOW), ("max_batch", 1, 4096),
            ("prompts", max(self.ues), 10**6), ("max_tokens", 1, 10**6),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise BadInput(f"{name.replace('_', '-')} must lie in [{low:g}, {high:g}], not {getattr(self, name):g}")
        self._check_links()

    def _check_links(self) -> None:
        if not self.link.is_proxied and self.link.kind != "none":
            raise BadInput(f"--real takes kind=none, kind=proxy and kind=trace,via=proxy, not {self.channel}")
        if self.radio is not None:
            if self.link.kind != "none":
                raise BadInput("give a channel or a radio, not both")
            if self.shares is not None and radio_section(self.radio).scheduler != "weights":
                raise BadInput(f"shares are weights of the radio: set radio.scheduler to weights in {self.radio}")
        elif self.shares is not None:
            raise BadInput("shares need a radio; those of a channel are a part of it: channel=kind=proxy,shares=FILE")
        given = self.link.ues if self.weights is None else len(self.weights)
        if given is not None and given < max(self.ues):
            raise BadInput(f"there are shares for {given} UEs, fewer than the {max(self.ues)} of a load")

    @property
    def link(self) -> ChannelSpec:
        """The channel."""
        return parse_channel(self.channel)

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Weights of the UEs in the radio; None: equal."""
        return None if self.shares is None else read_shares(Path(self.shares))

    @property
    def depth(self) -> int:
        """Longest window of any system."""
        return max(real_system(name).window or self.window for name in self.systems)


def real_system(system: str) -> RealSystem:
    """The system of that name.

    Raises:
        BadInput: an unknown system.
    """
    kind, dash, size = system.partition("-")
    if kind == FIXED.kind and dash:
        if not size.isdecimal() or not 1 <= int(size) <= MAX_WINDOW:
            raise BadInput(f"fixed-K has a window K in 1..{MAX_WINDOW}, not {size!r}")
        return RealSystem(FCFS, FIXED, window=int(size))
    if system not in SYSTEMS:
        raise BadInput(f"unknown system {system!r}; known: {', '.join(SYSTEMS)}, fixed-K")
    return SYSTEMS[system]
