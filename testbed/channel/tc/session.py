"""An emulation by `tc` for a given time, from its configuration: with a constant link, or along a trace."""

from __future__ import annotations

import asyncio
import math
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from testbed.channel.tc.commands import Command, Kind
from testbed.channel.tc.links import Egress, Namespaces, Qdisc
from testbed.channel.tc.offloads import MOST_SEGMENTS, OFFLOADS
from testbed.channel.tc.pair import MOST_PAIRS
from testbed.channel.tc.run import Say, undo
from testbed.channel.tc.shape import Duplex, LinkShape
from testbed.channel.trace import Trace
from testbed.clock import Clock, WallClock
from testbed.config import Config
from testbed.errors import BadInput

LEAST_WAIT_S = 1e-3
NAP_S = 3600.0


class TcConfig(Config, frozen=True):
    """Configuration of an emulation by `tc`.

    Raises:
        BadInput: values that cannot be combined.
    """

    interface: str | None = None
    """Existing interface whose outgoing traffic is shaped."""
    namespaces: int = 0
    """Number of UE namespaces to create instead."""
    first: int = 0
    """Index of the first UE namespace."""
    direction: Literal["uplink", "downlink"] = "uplink"
    """Direction of the link that leaves through `interface`."""
    destinations: tuple[str, ...] = ()
    """IPv4 addresses that are shaped separately, with `interface`."""
    uplink_mbps: float | None = None
    """None: no limit."""
    downlink_mbps: float | None = None
    rtt_ms: float = 0.0
    """Round-trip delay, one half in each direction; an `interface` adds only its half."""
    jitter_ms: float = 0.0
    """Half-width of the uniform jitter in each direction."""
    correlation: float = 0.0
    """Correlation of the delays of successive packets."""
    per_up: float = 0.0
    per_down: float = 0.0
    gilbert: tuple[float, float] | None = None
    """(p, r) of the Gilbert model for bursty losses in each direction."""
    qdisc: Qdisc = "auto"
    seconds: float | None = None
    """Duration; None: until interrupted."""
    force: int = 0
    """2: allow an `interface` with the default route."""

    def __post_init__(self) -> None:
        if (self.interface is None) == (self.namespaces == 0):
            raise BadInput("give an interface, or a number of namespaces")
        if not 0 <= self.namespaces <= MOST_PAIRS:
            raise BadInput(f"the number of namespaces must lie in 1..{MOST_PAIRS}, not {self.namespaces}")
        if self.destinations and self.interface is None:
            raise BadInput("destinations need an interface; namespaces have a link each anyway")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise BadInput(f"seconds must be positive and finite, not {self.seconds}")

    @property
    def link(self) -> Duplex:
        """The constant link."""
        return Duplex.of(
            self.uplink_mbps, self.downlink_mbps, self.rtt_ms, self.per_up, self.per_down, self.jitter_ms,
            self.correlation, self.gilbert,
        )  # fmt: skip


def run_tc(
    config: TcConfig, trace: Trace | None = None, dry_run: bool = False, say: Say = print, state: Path | None = None
) -> int:
    """Emulate a link for `config.seconds`, or until Ctrl-C; then restore the previous settings.

    Args:
        config: the emulation.
        trace: trace that the link follows repeatedly, in place of the constant link of the configuration.
        dry_run: print the commands only; needs neither root nor Linux.
        say: called with each line of output.
        state: directory of the claims (see `Ledger`).

    Returns:
        Exit code 0.

    Raises:
        BadInput: something that this machine cannot do, with advice.
        TestbedError: a command failed.
        KeyboardInterrupt: Ctrl-C before `config.seconds` had passed.
    """
    links = _links(config, trace)
    held = _held(config, links, state, say)
    if dry_run:
        for line in _script(config, held, trace):
            say(line)
        return 0
    with held:
        for line in _description(config, held):
            say(line)
        try:
            if trace is None:
                _sleep(config.seconds)
            else:
                asyncio.run(follow(trace, lambda link: _reshape(config, held, link), WallClock(), config.seconds))
        except KeyboardInterrupt:
            if config.seconds is not None:
                raise
    say("restored")
    return 0


async def follow(trace: Trace, apply: Callable[[Duplex], None], clock: Clock, seconds: float | None = None) -> None:
    """Apply a trace's states at their times, repeatedly; updates without a change are left out.

    Args:
        trace: trace to follow, starting now.
        apply: sets the link's state; if it falls behind, states are skipped.
        clock: clock of the replay.
        seconds: when to return; None: never.
    """
    origin_s, applied = clock.time(), None
    end_s = math.inf if seconds is None else seconds
    while (now_s := clock.time() - origin_s) < end_s:
        index = trace.index(now_s)
        link = Duplex.at(trace, index)
        if link != applied:
            apply(link)
            applied = link
        round_s = now_s - now_s % trace.duration_s
        next_s = round_s + (float(trace.t_s[index + 1]) if index + 1 < len(trace) else trace.duration_s)
        await clock.sleep(max(LEAST_WAIT_S, min(next_s, end_s) - (clock.time() - origin_s)))


def _links(config: TcConfig, trace: Trace | None) -> list[Duplex]:
    """All states that the link will have."""
    if trace is None:
        return [config.link]
    if config.link != Duplex():
        raise BadInput("a trace replaces the link: leave out rates, RTT, jitter and losses")
    return [Duplex.at(trace, index) for index in range(len(trace))]


def _held(config: TcConfig, links: list[Duplex], state: Path | None, say: Say) -> Namespaces | Egress:
    if config.interface is None:
        plain = all(link.plain for link in links)
        return Namespaces([links[0]] * config.namespaces, config.first, config.qdisc, plain, state, say)
    shapes = [_egress(config, link) for link in links]
    plain = all(shape.plain for shape in shapes)
    return Egress(config.interface, shapes[0], config.destinations, config.qdisc, plain, config.force, state, say)


def _egress(config: TcConfig, link: Duplex) -> LinkShape:
    return link.up if config.direction == "uplink" else link.down


def _change(config: TcConfig, held: Namespaces | Egress, kind: Kind, link: Duplex) -> list[Command]:
    if isinstance(held, Egress):
        return held.change(kind, _egress(config, link))
    return [command for ue in range(len(held.pairs)) for command in held.change(kind, ue, link)]


def _reshape(config: TcConfig, held: Namespaces | Egress, link: Duplex) -> None:
    if isinstance(held, Egress):
        held.reshape(_egress(config, link))
        return
    for ue in range(len(held.pairs)):
        held.reshape(ue, link)


def _script(config: TcConfig, held: Namespaces | Egress, trace: Trace | None) -> Iterator[str]:
    """The commands as a shell script, with at most one pass of the trace."""
    kind: Kind = "tbf" if config.qdisc == "tbf" else "netem"
    if config.qdisc == "auto":
        yield "# with netem; a kernel without it gets tbf (qdisc=tbf shows that), which only limits rates"
    plan = held.plan(kind)
    yield from map(shlex.join, plan.apply)
    if trace is not None:
        end_s = math.inf if config.seconds is None else config.seconds
        for index in range(1, len(trace)):
            if trace.t_s[index] < end_s:
                yield f"# at {trace.t_s[index]:g} s"
                yield from map(shlex.join, _change(config, held, kind, Duplex.at(trace, index)))
    yield "# at the end" + (", with those offloads that were on" if plan.interfaces else "")
    claimed = {name: list(OFFLOADS) for name in plan.interfaces}, list(plan.pairs)
    yield from map(shlex.join, undo(*claimed, dict.fromkeys(plan.interfaces, MOST_SEGMENTS)))


def _description(config: TcConfig, held: Namespaces | Egress) -> Iterator[str]:
    until = "until interrupted" if config.seconds is None else f"for {config.seconds:g} s"
    if isinstance(held, Egress):
        whose = f" to {', '.join(held.destinations)}" if held.destinations else ""
        yield f"{held.interface}{whose} shaped by {held.kind}, {until}"
        return
    yield f"{len(held.pairs)} UE namespaces, links shaped by {held.kind}, {until}"
    for ue in range(len(held.pairs)):
        yield f"UE {ue}: {shlex.join(held.prefix(ue))} COMMAND, with its base station at {held.host_address(ue)}"


def _sleep(seconds: float | None) -> None:
    end_s = math.inf if seconds is None else time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, NAP_S))
