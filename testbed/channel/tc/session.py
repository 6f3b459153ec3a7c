"""An emulation by `tc` from its configuration to its end: held for a time, constant or along a trace."""

from __future__ import annotations

import asyncio
import math
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from testbed.channel.tc.commands import OFFLOADS, Command, Kind
from testbed.channel.tc.links import Egress, Namespaces, Qdisc
from testbed.channel.tc.run import Say, undo
from testbed.channel.tc.shape import Duplex, LinkShape
from testbed.channel.trace import Trace
from testbed.clock import Clock, WallClock
from testbed.config import Config
from testbed.errors import BadInput

LEAST_WAIT_S = 1e-3
NAP_S = 3600.0


class TcConfig(Config, frozen=True):
    """What an emulation by `tc` does.

    Raises:
        BadInput: values that do not go together.
    """

    interface: str | None = None
    """Shape what leaves this one."""
    namespaces: int = 0
    """Or create so many UE namespaces."""
    first: int = 0
    """Index of the first UE namespace."""
    direction: Literal["uplink", "downlink"] = "uplink"
    """Which direction of the link leaves through `interface`."""
    destinations: tuple[str, ...] = ()
    """With `interface`: IPv4 addresses, each of which gets the rate for itself."""
    uplink_mbps: float | None = None
    """None: no limit."""
    downlink_mbps: float | None = None
    rtt_ms: float = 0.0
    """Half of it each way; an `interface` gives its own half only."""
    jitter_ms: float = 0.0
    """Uniform within ± this, each way."""
    correlation: float = 0.0
    """Of the delays of packets that follow each other."""
    per_up: float = 0.0
    per_down: float = 0.0
    gilbert: tuple[float, float] | None = None
    """(p, r) of losses in bursts, each way."""
    qdisc: Qdisc = "auto"
    seconds: float | None = None
    """None: until interrupted."""
    force: int = 0
    """2: even where `interface` carries the default route."""

    def __post_init__(self) -> None:
        if (self.interface is None) == (self.namespaces == 0):
            raise BadInput("give an interface, or a number of namespaces")
        if self.namespaces < 0:
            raise BadInput(f"the number of namespaces must be positive, not {self.namespaces}")
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
    """Emulate a link for `config.seconds`, or until Ctrl-C; then all is as it was.

    Args:
        config: where, what and how long.
        trace: the link follows it, again and again, in place of the configuration's constant one.
        dry_run: say the commands, and do nothing; needs neither root nor Linux.
        say: told each line.
        state: folder where it is written down what is touched.

    Returns:
        Exit code 0.

    Raises:
        BadInput: what cannot be done here, with what would help.
        TestbedError: a command failed.
        KeyboardInterrupt: Ctrl-C before `config.seconds` were over.
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
    """Apply a trace's states as they come, the trace again and again; an update that would change nothing is left out.

    Args:
        trace: what to follow, from now on.
        apply: gives the link a state; where it is late, states in between are skipped.
        clock: says when.
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
        raise BadInput("a trace says what the link is: leave out rates, RTT, jitter and losses")
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
    """What would be run, as a shell script; one round of a trace at most."""
    kind: Kind = "tbf" if config.qdisc == "tbf" else "netem"
    if config.qdisc == "auto":
        yield "# by netem; a kernel that has none gets tbf (qdisc=tbf shows it), which does rates alone"
    plan = held.plan(kind)
    yield from map(shlex.join, plan.apply)
    if trace is not None:
        end_s = math.inf if config.seconds is None else config.seconds
        for index in range(1, len(trace)):
            if trace.t_s[index] < end_s:
                yield f"# at {trace.t_s[index]:g} s"
                yield from map(shlex.join, _change(config, held, kind, Duplex.at(trace, index)))
    yield "# at the end" + (", with those offloads that were on" if plan.interfaces else "")
    yield from map(shlex.join, undo({name: list(OFFLOADS) for name in plan.interfaces}, list(plan.pairs)))


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
