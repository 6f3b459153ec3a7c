"""Links emulated by `tc`: between UE namespaces and the host, or behind one interface that is there already."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from testbed.channel.tc.commands import Command, Kind, check_interface, htb, offload, reshaped, shaped
from testbed.channel.tc.execute import INTERFACES, choose, require, run
from testbed.channel.tc.pair import NamespacePair, create_pair
from testbed.channel.tc.run import Plan, Say, emulation
from testbed.channel.tc.shape import Duplex, LinkShape
from testbed.errors import BadInput

Qdisc = Literal["auto", "netem", "tbf"]
"""auto: netem where the kernel has it, else tbf."""


class _Held:
    """A context that holds an emulation; `kind` says what shapes, once it is entered."""

    kind: Kind

    def __init__(self, qdisc: Qdisc, plain: bool, force: int, state: Path | None, say: Say) -> None:
        self._qdisc, self._plain, self._force, self._state, self._say = qdisc, plain, force, state, say
        self._stack = contextlib.ExitStack()

    def plan(self, kind: Kind) -> Plan:
        """What it touches, and the commands that set it up."""
        raise NotImplementedError

    def _enter(self) -> None:
        self.kind = choose(self._qdisc, self._plain)
        self._stack.enter_context(emulation(self.plan(self.kind), self._force, self._state, self._say))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take it back."""
        self._stack.__exit__(kind, error, trace)


class Namespaces(_Held):
    """A network namespace for each UE, whose link to the host is shaped: its uplink inside, its downlink on the host.

    UE `i` is the i-th of these links. A base station on the host that listens on all addresses is at
    `host_address(i)` for it; a process started with `prefix(i)` before its command line is in its namespace.

    Args:
        links: the UEs' links at the start.
        first: index of the first UE's names and addresses, so that several emulations fit on a machine.
        qdisc: what shapes.
        plain: whether `reshape` will ask for rates at most; None: as `links` do.
        state: folder where it is written down what is touched.
        say: told what is worth knowing.

    Raises:
        BadInput: no UE or too many; on entering also what `emulation` and `choose` raise.
    """

    def __init__(
        self, links: Sequence[Duplex], first: int = 0, qdisc: Qdisc = "auto", plain: bool | None = None,
        state: Path | None = None, say: Say = lambda _: None,
    ) -> None:  # fmt: skip
        if not links:
            raise BadInput("namespaces are made for one UE or more")
        if plain is None:
            plain = all(link.plain for link in links)
        super().__init__(qdisc, plain, 0, state, say)
        self.links = list(links)
        self.pairs = [NamespacePair(first + number) for number in range(len(links))]

    def __enter__(self) -> Namespaces:
        """Create and shape."""
        self._enter()
        return self

    def plan(self, kind: Kind) -> Plan:
        """What it touches, and the commands that set it up."""
        commands: list[Command] = []
        for pair, link in zip(self.pairs, self.links, strict=True):
            commands += create_pair(pair.index)
            commands += offload(pair.host_interface) + offload(pair.ue_interface, namespace=pair.namespace)
            commands += shaped(pair.ue_interface, link.up, kind, pair.namespace)
            commands += shaped(pair.host_interface, link.down, kind)
        return Plan(tuple(commands), pairs=tuple(pair.index for pair in self.pairs))

    def change(self, kind: Kind, ue: int, link: Duplex) -> list[Command]:
        """The commands that give a UE another link."""
        pair, before = self.pairs[ue], self.links[ue]
        up = reshaped(pair.ue_interface, before.up, link.up, kind, pair.namespace)
        return up + reshaped(pair.host_interface, before.down, link.down, kind)

    def reshape(self, ue: int, link: Duplex) -> None:
        """Give a UE another link while packets flow; takes some milliseconds.

        Raises:
            BadInput: it needs netem, and tbf shapes.
            TestbedError: a command failed.
        """
        for command in self.change(self.kind, ue, link):
            run(command)
        self.links[ue] = link

    def prefix(self, ue: int) -> list[str]:
        """What goes before the command line of a process of a UE."""
        return ["ip", "netns", "exec", self.pairs[ue].namespace]

    def host_address(self, ue: int) -> str:
        """IPv4 address at which a UE reaches the host."""
        return self.pairs[ue].host_address

    def ue_address(self, ue: int) -> str:
        """IPv4 address of a UE."""
        return self.pairs[ue].ue_address


class Egress(_Held):
    """What leaves an interface is shaped: all of it, or each destination by itself.

    It is one direction. On a UE that is its uplink; on a BS, with the UEs' addresses as destinations, their downlinks.

    Args:
        interface: its name.
        shape: of all, or of each destination.
        destinations: IPv4 addresses; other traffic then passes untouched.
        qdisc: what shapes.
        plain: whether `reshape` will ask for rates at most; None: as `shape` does.
        force: 2 or more takes an interface of the default route too.
        state: folder where it is written down what is touched.
        say: told what is worth knowing.

    Raises:
        BadInput: on entering, what `emulation` and `choose` raise.
    """

    def __init__(
        self, interface: str, shape: LinkShape, destinations: Sequence[str] = (), qdisc: Qdisc = "auto",
        plain: bool | None = None, force: int = 0, state: Path | None = None, say: Say = lambda _: None,
    ) -> None:  # fmt: skip
        super().__init__(qdisc, shape.plain if plain is None else plain, force, state, say)
        self.interface, self.shape, self.destinations = check_interface(interface), shape, tuple(destinations)

    def __enter__(self) -> Egress:
        """Shape."""
        if self.destinations:
            require("htb")
        self._enter()
        return self

    def plan(self, kind: Kind) -> Plan:
        """What it touches, and the commands that set it up."""
        if self.destinations:
            shaping = htb(self.interface, dict.fromkeys(self.destinations, self.shape), kind, mtu=self._mtu)
        else:
            shaping = shaped(self.interface, self.shape, kind, mtu=self._mtu)
        return Plan((*offload(self.interface), *shaping), interfaces=(self.interface,))

    def change(self, kind: Kind, shape: LinkShape) -> list[Command]:
        """The commands that give it another shape."""
        if self.destinations:
            return htb(
                self.interface, dict.fromkeys(self.destinations, shape), kind, verb="change", mtu=self._mtu
            )  # fmt: skip
        return reshaped(self.interface, self.shape, shape, kind, mtu=self._mtu)

    def reshape(self, shape: LinkShape) -> None:
        """Give it another shape while packets flow.

        Raises:
            BadInput: it needs netem, and the kernel has none; or it has no rate, and there are destinations.
            TestbedError: a command failed.
        """
        for command in self.change(self.kind, shape):
            run(command)
        self.shape = shape

    @property
    def _mtu(self) -> int:
        """Largest packet; that of an Ethernet where there is no such interface, as a dry run allows."""
        try:
            return int((INTERFACES / self.interface / "mtu").read_text())
        except (OSError, ValueError):
            return 1500
