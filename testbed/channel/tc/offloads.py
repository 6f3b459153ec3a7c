"""Commands that make the kernel hand single frames to a qdisc, and parsers of their output; runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from testbed.channel.tc.commands import Command, check_interface

OFFLOADS = {
    "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload",
    "gro": "generic-receive-offload",
}
"""Offloads, as `ethtool -K` takes them and as `ethtool -k` prints them."""


def offload(
    interface: str, names: Iterable[str] = tuple(OFFLOADS), on: bool = False, namespace: str | None = None
) -> list[Command]:
    """Switch offloads off (or on), so that the qdisc sees single frames rather than up to 64 kB as one packet."""
    switches = [part for name in names for part in (name, "on" if on else "off")]
    if not switches:
        return []
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    return [[*inside, "ethtool", "-K", check_interface(interface), *switches]]


def offloads_on(features: str) -> list[str]:
    """Those of `OFFLOADS` that are on and can be switched, in the output of `ethtool -k`."""
    return [name for name, long in OFFLOADS.items() if re.search(rf"^\s*{long}: on\s*$", features, re.MULTILINE)]
