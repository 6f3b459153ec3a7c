"""Commands that make the kernel hand single frames to a qdisc, and parsers of output; runs nothing.

Since Linux 4.17 TCP hands over up to 64 kB as one packet whatever the offloads of the interface are; a qdisc then
loses, delays and counts it as one. Its size is limited by `gso_max_segs` of ip-link(8), the most segments in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from testbed.channel.tc.commands import Command, check_interface, parsed

OFFLOADS = {
    "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload",
    "gro": "generic-receive-offload",
}
"""Offloads, as `ethtool -K` takes them and as `ethtool -k` prints them."""
MOST_SEGMENTS = 65535
"""The kernel's default of `gso_max_segs`."""


def single_frames(interface: str, namespace: str | None = None) -> list[Command]:
    """Make the qdisc of an interface see single frames."""
    return [*offload(interface, namespace=namespace), segments(interface, 1, namespace)]


def segments(interface: str, most: int, namespace: str | None = None) -> Command:
    """Limit the segments of a packet that TCP hands over."""
    inside = ["-n", namespace] if namespace else []
    return ["ip", *inside, "link", "set", "dev", check_interface(interface), "gso_max_segs", str(most)]


def most_segments(link: str) -> int | None:
    """The limit in the output of `ip -d -j link show dev INTERFACE`; None: the kernel or iproute2 does not tell it.

    Raises:
        TestbedError: output that cannot be parsed.
    """
    found = [entry.get("gso_max_segs") for entry in parsed(link, "ip -d -j link")]
    return found[0] if found else None


def offload(
    interface: str, names: Iterable[str] = tuple(OFFLOADS), on: bool = False, namespace: str | None = None
) -> list[Command]:
    """Switch offloads off (or on)."""
    switches = [part for name in names for part in (name, "on" if on else "off")]
    if not switches:
        return []
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    return [[*inside, "ethtool", "-K", check_interface(interface), *switches]]


def offloads_on(features: str) -> list[str]:
    """Those of `OFFLOADS` that are on and can be switched, in the output of `ethtool -k`."""
    return [name for name, long in OFFLOADS.items() if re.search(rf"^\s*{long}: on\s*$", features, re.MULTILINE)]
