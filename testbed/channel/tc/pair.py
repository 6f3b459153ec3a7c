"""A UE's network namespace and its veth pair to the host: names, addresses, commands to create and delete them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

from testbed.channel.tc.commands import Command
from testbed.errors import BadInput

PREFIX = "tb"
NETWORK = ipaddress.IPv4Network("10.200.0.0/16")
MOST_PAIRS = NETWORK.num_addresses // 4


@dataclass(frozen=True)
class NamespacePair:
    """Names and addresses of the `index`-th UE's namespace and its veth pair to the host.

    Raises:
        BadInput: an index outside [0, `MOST_PAIRS`).
    """

    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < MOST_PAIRS:
            raise BadInput(f"the index of a UE must lie in [0, {MOST_PAIRS}), not {self.index}")

    @property
    def namespace(self) -> str:
        """Name of the network namespace."""
        return f"{PREFIX}{self.index}"

    @property
    def ue_interface(self) -> str:
        """Interface in the namespace."""
        return f"{PREFIX}{self.index}u"

    @property
    def host_interface(self) -> str:
        """Interface on the host."""
        return f"{PREFIX}{self.index}h"

    @property
    def host_address(self) -> str:
        """IPv4 address of the host interface: the first of the pair's /30 subnet."""
        return str(NETWORK[4 * self.index + 1])

    @property
    def ue_address(self) -> str:
        """IPv4 address of the UE interface."""
        return str(NETWORK[4 * self.index + 2])

    def mac(self, end: Literal["host", "ue"]) -> str:
        """A locally administered MAC address, unique to this pair and end."""
        return f"02:7b:{'00' if end == 'host' else '01'}:00:{self.index >> 8:02x}:{self.index & 255:02x}"


def create_pair(index: int) -> list[Command]:
    """Commands that create a UE's namespace with a configured veth pair and a default route to the host.

    Neighbour entries are static, since a lost ARP request would stall a link for a second.
    """
    pair = NamespacePair(index)
    name, ue, host = pair.namespace, pair.ue_interface, pair.host_interface
    inside = ["ip", "-n", name]
    peer = ["peer", "name", ue, "address", pair.mac("ue"), "netns", name]
    return [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", "name", host, "address", pair.mac("host"), "type", "veth", *peer],
        ["ip", "address", "add", f"{pair.host_address}/30", "dev", host],
        [*inside, "address", "add", f"{pair.ue_address}/30", "dev", ue],
        ["ip", "link", "set", "dev", host, "up"],
        [*inside, "link", "set", "dev", "lo", "up"],
        [*inside, "link", "set", "dev", ue, "up"],
        ["ip", "neighbour", "replace", pair.ue_address, "lladdr", pair.mac("ue"), "dev", host],
        [*inside, "neighbour", "replace", pair.host_address, "lladdr", pair.mac("host"), "dev", ue],
        [*inside, "route", "add", "default", "via", pair.host_address],
    ]


def delete_pair(index: int) -> list[Command]:
    """Commands that undo `create_pair`; the link comes first, as a namespace stays while a process runs in it."""
    pair = NamespacePair(index)
    return [["ip", "link", "delete", "dev", pair.host_interface], ["ip", "netns", "delete", pair.namespace]]
