"""Builders of the `tc` command lines of an emulation, and parsers of their output; runs nothing.

Qdiscs shape what leaves an interface. netem supports every parameter; on a kernel without it, tbf limits the rate of an
interface, and HTB those of several destinations behind one interface. See tc-netem(8), tc-tbf(8), tc-htb(8).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from testbed.channel.tc.shape import FRAME_BYTES, LEAST_MBPS, LinkShape
from testbed.errors import BadInput, TestbedError

Command = list[str]
Kind = Literal["netem", "tbf"]
Verb = Literal["add", "change"]

MOST_DESTINATIONS = 1000
FIRST_CLASS = 2
"""Minor number of the first of the classes that share a rate, which is that of class 1."""
SHARED_QUEUE_BYTES = 2**26
"""Queue of each of these classes: more than TCP has under way, so that nothing is lost, as in a radio's RLC."""
QUANTUM_FRAMES = 4
"""Frames that a class of mean weight sends in its turn of what others leave."""


def check_interface(name: str) -> str:
    """Return a valid interface name unchanged.

    Raises:
        BadInput: not a valid name.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}", name):
        raise BadInput(f"bad interface {name!r}; use a name that `ip link` lists, such as wlan0")
    return name


def netem(interface: str, shape: LinkShape, namespace: str | None = None, verb: Verb = "add") -> list[Command]:
    """Shape what leaves an interface with netem."""
    place = ["dev", check_interface(interface), "root", "handle", "1:"]
    return [[*_tc(namespace), "qdisc", verb, *place, *_netem(shape)]]


def tbf(
    interface: str, shape: LinkShape, namespace: str | None = None, verb: Verb = "add", mtu: int = 1500
) -> list[Command]:
    """Limit the rate of what leaves an interface with a token bucket filter.

    Raises:
        BadInput: no rate, or a parameter that only netem supports.
    """
    if not shape.plain:
        raise BadInput(f"tbf only limits a rate: {_beyond(shape)} need netem")
    rate, burst, queue = _rate(shape.rate_mbps), _burst(shape, mtu), shape.queue_bytes(_frame(mtu))
    place = ["dev", check_interface(interface), "root", "handle", "1:"]
    options = ["tbf", "rate", rate, "burst", str(burst), "limit", str(queue + burst)]
    return [[*_tc(namespace), "qdisc", verb, *place, *options]]


def htb(
    interface: str,
    shapes: Mapping[str, LinkShape],
    kind: Kind = "tbf",
    namespace: str | None = None,
    verb: Verb = "add",
    mtu: int = 1500,
) -> list[Command]:
    """Shape the traffic to each destination (IPv4 address: shape) in its own class; other traffic is not shaped.

    With `kind="netem"`, a netem below its class adds a destination's delay and loss. `verb="change"` needs the same
    destinations in the same order.

    Raises:
        BadInput: no or too many destinations, an invalid address, a shape without a rate, or one that needs netem.
    """
    if not 0 < len(shapes) <= MOST_DESTINATIONS:
        raise BadInput(f"htb takes 1 to {MOST_DESTINATIONS} destinations, not {len(shapes)}")
    tc, device, frame = _tc(namespace), ["dev", check_interface(interface)], _frame(mtu)
    commands = [] if verb == "change" else [[*tc, "qdisc", "add", *device, "root", "handle", "1:", "htb"]]
    for number, (address, shape) in enumerate(shapes.items(), 1):
        if shape.rate_mbps is None:
            raise BadInput(f"htb needs a rate for {address}")
        if kind == "tbf" and not shape.plain:
            raise BadInput(f"htb only limits a rate: {_beyond(shape)} need netem")
        burst, identity = str(_burst(shape, mtu)), f"1:{number:x}"
        match = ["u32", "match", "ip", "dst", f"{_ipv4(address)}/32", "flowid", identity]
        limits = ["rate", _rate(shape.rate_mbps), "burst", burst, "cburst", burst, "quantum", str(frame)]
        commands.append([*tc, "class", verb, *device, "parent", "1:", "classid", identity, "htb", *limits])
        queue = _netem(shape, rated=False) if kind == "netem" else ["bfifo", "limit", str(shape.queue_bytes(frame))]
        commands.append([*tc, "qdisc", verb, *device, "parent", identity, "handle", f"{number + 15:x}:", *queue])
        if verb == "add":
            commands.append([*tc, "filter", "add", *device, "parent", "1:", "protocol", "ip", "prio", "1", *match])
    return commands


def shared(
    interface: str,
    rate_mbps: float,
    weights: Mapping[str, float],
    way: Literal["src", "dst"],
    namespace: str | None = None,
    mtu: int = 1500,
) -> list[Command]:
    """Divide a rate by weights between the traffic from (`src`) or to (`dst`) IPv4 addresses, each in a class of HTB
    that takes what others leave; other traffic is not shaped.

    Raises:
        BadInput: no or too many addresses, an invalid one, or a rate out of range.
    """
    if not 0 < len(weights) <= MOST_DESTINATIONS:
        raise BadInput(f"htb takes 1 to {MOST_DESTINATIONS} addresses, not {len(weights)}")
    tc, device, shape = _tc(namespace), ["dev", check_interface(interface)], LinkShape(rate_mbps)
    whole = ["rate", _rate(rate_mbps), "burst", burst := str(_burst(shape, mtu)), "cburst", burst]
    commands = [
        [*tc, "qdisc", "add", *device, "root", "handle", "1:", "htb"],
        [*tc, "class", "add", *device, "parent", "1:", "classid", "1:1", "htb", *whole],
        *reweighed(interface, rate_mbps, list(weights.values()), namespace, "add", mtu),
    ]
    for number, address in enumerate(weights, FIRST_CLASS):
        identity = f"1:{number:x}"
        queue = ["bfifo", "limit", str(SHARED_QUEUE_BYTES)]
        match = ["u32", "match", "ip", way, f"{_ipv4(address)}/32", "flowid", identity]
        commands += [
            [*tc, "qdisc", "add", *device, "parent", identity, "handle", f"{number + 15:x}:", *queue],
            [*tc, "filter", "add", *device, "parent", "1:", "protocol", "ip", "prio", "1", *match],
        ]
    return commands


def reweighed(
    interface: str,
    rate_mbps: float,
    weights: Sequence[float],
    namespace: str | None = None,
    verb: Verb = "change",
    mtu: int = 1500,
) -> list[Command]:
    """Set the weights of the classes of `shared`, in its order: rates in proportion to them, and quanta, by which HTB
    divides what others leave.
    """
    tc, device, burst = _tc(namespace), ["dev", check_interface(interface)], str(2 * _frame(mtu))
    mean, commands = sum(weights) / len(weights), list[Command]()
    for number, weight in enumerate(weights, FIRST_CLASS):
        rate = _rate(max(LEAST_MBPS, rate_mbps * weight / sum(weights)))
        quantum = str(max(_frame(mtu), round(QUANTUM_FRAMES * _frame(mtu) * weight / mean)))
        limits = ["rate", rate, "ceil", _rate(rate_mbps), "burst", burst, "cburst", burst, "quantum", quantum]
        commands.append([*tc, "class", verb, *device, "parent", "1:1", "classid", f"1:{number:x}", "htb", *limits])
    return commands


def shaped(
    interface: str, shape: LinkShape, kind: Kind, namespace: str | None = None, verb: Verb = "add", mtu: int = 1500
) -> list[Command]:
    """Shape an interface with netem or tbf; with tbf, no commands for a shape without limit.

    Raises:
        BadInput: as `tbf`.
    """
    if kind == "netem":
        return netem(interface, shape, namespace, verb)
    return [] if shape.unlimited else tbf(interface, shape, namespace, verb, mtu)


def reshaped(
    interface: str, before: LinkShape, after: LinkShape, kind: Kind, namespace: str | None = None, mtu: int = 1500
) -> list[Command]:
    """Change the shape of an interface while packets flow; queued packets are kept.

    Raises:
        BadInput: as `tbf`.
    """
    if kind == "tbf" and after.unlimited:
        return [] if before.unlimited else clear(interface, namespace)
    verb: Verb = "add" if kind == "tbf" and before.unlimited else "change"
    return shaped(interface, after, kind, namespace, verb, mtu)


def clear(interface: str, namespace: str | None = None) -> list[Command]:
    """Remove an interface's qdisc; the kernel then restores its default."""
    return [[*_tc(namespace), "qdisc", "del", "dev", check_interface(interface), "root"]]


def default_interfaces(routes: str) -> set[str]:
    """Interfaces of default routes in the output of `ip -j route show table all`, except unreachable ones."""
    found: set[str] = set()
    for route in parsed(routes, "ip -j route"):
        if route.get("dst") == "default" and route.get("type", "unicast") == "unicast":
            found.update(hop["dev"] for hop in [route, *route.get("nexthops", [])] if "dev" in hop)
    return found


def root_qdisc(qdiscs: str) -> dict[str, Any] | None:
    """The root qdisc with its options and counters, in the output of `tc -s -j qdisc show dev INTERFACE`."""
    return next((qdisc for qdisc in parsed(qdiscs, "tc -j qdisc") if qdisc.get("root")), None)


def is_default(qdisc: Mapping[str, Any] | None) -> bool:
    """Whether a root qdisc is the kernel's default."""
    return qdisc is None or qdisc.get("handle") == "0:"


def parsed(text: str, source: str) -> list[dict[str, Any]]:
    """Entries of the output of `tc -j` or `ip -j`, those that are not empty.

    Raises:
        TestbedError: not such an output.
    """
    try:
        return [entry for entry in json.loads(text or "[]") if entry]
    except ValueError as exc:
        raise TestbedError(f"cannot parse the output of `{source}`: {exc}") from exc


def _tc(namespace: str | None) -> Command:
    return ["tc", "-n", namespace] if namespace else ["tc"]


def _netem(shape: LinkShape, rated: bool = True) -> Command:
    """netem with every option, since a change keeps options that are left out (and, unlike delete and add, packets)."""
    delay = [_ms(shape.delay_ms), _ms(shape.jitter_ms), _percent(shape.correlation)]
    loss = ["gemodel", *map(_percent, shape.gilbert)] if shape.gilbert else ["random", _percent(shape.loss)]
    rate = ["rate", _rate(shape.rate_mbps if rated else None)]
    return ["netem", "limit", str(shape.packets), "delay", *delay, "loss", *loss, *rate]


def _beyond(shape: LinkShape) -> str:
    asked = {"delay": shape.delay_ms, "jitter": shape.jitter_ms, "loss": shape.loss, "bursts of loss": shape.gilbert}
    return ", ".join(name for name, value in asked.items() if value)


def _frame(mtu: int) -> int:
    return mtu + FRAME_BYTES - 1500


def _burst(shape: LinkShape, mtu: int) -> int:
    """A millisecond of the rate, at least two frames; kept small because a burst passes without delay."""
    return max(2 * _frame(mtu), round((shape.rate_mbps or 0) * 1e3 / 8))


def _rate(rate_mbps: float | None) -> str:
    """A rate for tc, whose units are decimal; 0 means no limit in netem."""
    bits = round((rate_mbps or 0) * 1e6)
    for unit, size in (("mbit", 10**6), ("kbit", 10**3)):
        if bits and bits % size == 0:
            return f"{bits // size}{unit}"
    return f"{bits}bit"


def _ms(value: float) -> str:
    return f"{_short(value, 3)}ms"


def _percent(share: float) -> str:
    return f"{_short(100 * share, 6)}%"


def _short(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") or "0"


def _ipv4(address: str) -> ipaddress.IPv4Address:
    try:
        return ipaddress.IPv4Address(address)
    except ValueError as exc:
        raise BadInput(f"bad destination {address!r}; use an IPv4 address, such as 10.0.0.7") from exc
