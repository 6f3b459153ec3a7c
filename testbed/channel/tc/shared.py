"""A cell by `tc`: the UEs' uplinks share one rate by weights, and their downlinks another, in the kernel's HTB."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.channel.tc.commands import FIRST_CLASS, Kind, reweighed, shared
from testbed.channel.tc.execute import require, require_root, run
from testbed.channel.tc.links import TcEmulation
from testbed.channel.tc.offloads import single_frames
from testbed.channel.tc.pair import NETWORK, NamespacePair, create_pair
from testbed.channel.tc.run import NAMESPACES, Plan, Say
from testbed.channel.tc.state import Ledger
from testbed.errors import BadInput, TestbedError

FIRST_PAIR, MOST_SHARED = 16_000, 64
"""Index of the first cell's namespace, beyond those of UEs with links of their own; and UEs of a cell, at most."""
CELLS = 256
ADDRESSES = NETWORK.network_address + NETWORK.num_addresses
"""The first address of UEs: cell n has the n-th 256 from there."""
CLONE_NEWNET = 0x40000000
CLASS = re.compile(r"^class \w+ \d+:(\w+) .*\n Sent (\d+) bytes", re.MULTILINE)
CONNECTION = re.compile(r"^[A-Z0-9-]+ +\d+ +(\d+) +([\d.]+):\d+ ", re.MULTILINE)


def free_number(first: int, state: Path | None = None) -> int:
    """Number of a cell that no process uses on this machine: `first`, or the next one.

    Raises:
        BadInput: a claim that cannot be read.
    """
    used = {index for _, claim in Ledger(state).claims() if claim.alive for index in claim.pairs}
    return next((n for n in range(first, first + CELLS) if FIRST_PAIR + n % CELLS not in used), first)


class SharedRates(NamedTuple):
    """The two shared rates of a cell, for whoever sets weights and counts bytes."""

    pair: NamespacePair
    rates_mbps: tuple[float, float]
    """Uplink and downlink."""

    def weigh(self, before: Sequence[float], weights: Sequence[float]) -> None:
        """Set the weights of the UEs' uplinks while packets flow; takes some milliseconds.

        Raises:
            TestbedError: a command failed.
        """
        new, old = (reweighed(self.pair.ue_interface, self.rates_mbps[0], every) for every in (weights, before))
        changed = [command[1:] for command, same in zip(new, old, strict=True) if command != same]
        if changed:
            run(["tc", "-n", self.pair.namespace, "-batch", "-"], "\n".join(map(" ".join, changed)) + "\n")

    def sent_bytes(self, up: bool, ues: int) -> list[int]:
        """Bytes of each UE in a direction so far, headers of TCP, IP and Ethernet included.

        Raises:
            TestbedError: a command failed.
        """
        tc = ["tc", "-n", self.pair.namespace] if up else ["tc"]
        interface = self.pair.ue_interface if up else self.pair.host_interface
        sent = class_bytes(run([*tc, "-s", "class", "show", "dev", interface]))
        return [sent[FIRST_CLASS + ue] for ue in range(ues)]

    def waiting(self) -> set[str]:
        """Addresses of UEs whose connections have bytes that have not arrived.

        Raises:
            TestbedError: a command failed.
        """
        return unsent(run(["ss", "--net", self.pair.namespace, "--no-header", "--tcp", "--numeric"]))


class SharedCell(TcEmulation):
    """Context manager: a network namespace for all UEs of a cell, each with an address, and two shared rates.

    Args:
        number: of the cell, so that several can run on a machine.
        rates_mbps: rates of uplink and downlink.
        weights: [n] of the UEs' uplinks, positive; downlinks are alike.
        state: directory of the claims (see `Ledger`).
        say: called with each status line.

    Raises:
        BadInput: no UE or too many; on entering, as `emulation` and `choose`.
    """

    def __init__(
        self, number: int, rates_mbps: tuple[float, float], weights: Sequence[float], state: Path | None = None,
        say: Say = lambda _: None,
    ) -> None:  # fmt: skip
        super().__init__("auto", True, 0, state, say)
        if not 0 < len(weights) <= MOST_SHARED:
            raise BadInput(f"a cell by tc has 1 to {MOST_SHARED} UEs, not {len(weights)}")
        self.rates, self._weights = SharedRates(NamespacePair(FIRST_PAIR + number % CELLS), rates_mbps), list(weights)
        first = ADDRESSES + 256 * (number % CELLS)
        self._network, self.addresses = f"{first}/24", [str(first + 1 + ue) for ue in range(len(weights))]

    @property
    def namespace(self) -> str:
        """Name of the UEs' namespace."""
        return self.rates.pair.namespace

    @property
    def host_address(self) -> str:
        """IPv4 address at which the UEs reach the host."""
        return self.rates.pair.host_address

    def __enter__(self) -> SharedCell:
        """Create the namespace, and shape what enters and leaves it."""
        require_root()
        require("htb")
        self._enter()
        return self

    def plan(self, kind: Kind) -> Plan:
        """The namespace in use, and the commands that set it up."""
        pair, (up_mbps, down_mbps) = self.rates
        commands = create_pair(pair.index)
        for address in self.addresses:
            commands.append(["ip", "-n", pair.namespace, "address", "add", f"{address}/32", "dev", pair.ue_interface])
        commands.append(["ip", "route", "add", self._network, "via", pair.ue_address])
        commands += single_frames(pair.ue_interface, namespace=pair.namespace) + single_frames(pair.host_interface)
        weights = dict(zip(self.addresses, self._weights, strict=True))
        commands += shared(pair.ue_interface, up_mbps, weights, "src", pair.namespace)
        commands += shared(pair.host_interface, down_mbps, dict.fromkeys(self.addresses, 1.0), "dst")
        return Plan(tuple(commands), pairs=(pair.index,))


def class_bytes(text: str) -> dict[int, int]:
    """Bytes that classes have sent by minor number, from the output of `tc -s class show`."""
    return {int(minor, 16): int(sent) for minor, sent in CLASS.findall(text)}


def unsent(text: str) -> set[str]:
    """Local addresses of connections with bytes that are not acknowledged, from the output of `ss`."""
    return {address for queue, address in CONNECTION.findall(text) if int(queue)}


def enter_namespace(name: str) -> None:
    """Move this thread, and processes that it starts, into a network namespace.

    Raises:
        TestbedError: there is none of this name, or no right to enter it.
    """
    try:
        with open(NAMESPACES / name, "rb") as file:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as exc:
        raise TestbedError(f"cannot enter the network namespace {name}: {exc.strerror}") from exc
