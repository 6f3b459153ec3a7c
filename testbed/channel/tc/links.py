"""Links shaped by `tc`: `Namespaces` (one network namespace per UE) and `Egress` (one existing interface)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from testbed.channel.tc.commands import Command, Kind, check_interface, htb, reshaped, shaped
from testbed.channel.tc.execute import INTERFACES, choose, require, require_root, run
from testbed.channel.tc.offloads import single_frames
from testbed.channel.tc.pair import NamespacePair, create_pair
from testbed.channel.tc.run import Plan, Say, emulation
from testbed.channel.tc.shape import Duplex, LinkShape
from testbed.errors import BadInput

Qdisc = Literal["auto", "netem", "tbf"]
"""auto: netem if the kernel has it, else tbf."""


class TcEmulation:
    """Context manager of an emulation; `kind` is the qdisc in use, set on entering."""

    kind: Kind

    def __init__(self, qdisc: Qdisc, plain: bool, force: int, state: Path | None, say: Say) -> None:
        self._qdisc, self._plain, self._force, self._state, self._say = qdisc, plain, force, state, say
        self._stack = contextlib.ExitStack()

    def plan(self, kind: Kind) -> Plan:
        """The interfaces and namespaces in use, and the commands that set them up."""
        raise NotImplementedError

    def _enter(self) -> None:
        self.kind = choose(self._qdisc, self._plain)
        self._stack.enter_context(emulation(self.plan(self.kind), self._force, self._state, self._say))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Undo the emulation."""
        self._stack.__exit__(kind, error, trace)


class Namespaces(TcEmulation):
    """A network namespace per UE, with a shaped link to the host: the uplink in the namespace, the downlink on the
    host.

    UE `i` has the i-th of the links. It reaches a base station that listens on all addresses of the host at
    `host_address(i)`; a command with `prefix(i)` in front runs in its namespace.

    Args:
        links: initial links of the UEs.
        first: index of the first UE's names and addresses, so that several emulations can run on a machine.
        qdisc: queueing discipline that shapes.
        plain: whether `reshape` will only set rates; None: whether `links` only have rates.
        state: directory of the claims (see `Ledger`).
        say: called with each status line.

    Raises:
        BadInput: no UE or too many; on entering, as `emulation` and `choose`.
    """

    def __init__(
        self, links: Sequence[Duplex], first: int = 0, qdisc: Qdisc = "auto", plain: bool | None = None,
        state: Path | None = None, say: Say = lambda _: None,
    ) -> None:  # fmt: skip
        if not links:
            raise BadInput("namespaces need at least one UE")
        if plain is None:
            plain = all(link.plain for link in links)
        super().__init__(qdisc, plain, 0, state, say)
        self.links = list(links)
        self.pairs = [NamespacePair(first + number) for number in range(len(links))]

    def __enter__(self) -> Namespaces:
        """Create and shape the links."""
        self._enter()
        return self

    def plan(self, kind: Kind) -> Plan:
        """The namespaces in use, and the commands that set them up."""
        commands: list[Command] = []
        for pair, link in zip(self.pairs, self.links, strict=True):
            commands += create_pair(pair.index)
            commands += single_frames(pair.host_interface) + single_frames(pair.ue_interface, namespace=pair.namespace)
            commands += shaped(pair.ue_interface, link.up, kind, pair.namespace)
            commands += shaped(pair.host_interface, link.down, kind)
        return Plan(tuple(commands), pairs=tuple(pair.index for pair in self.pairs))

    def change(self, kind: Kind, ue: int, link: Duplex) -> list[Command]:
        """Commands that change a UE's link."""
        pair, before = self.pairs[ue], self.links[ue]
        up = reshaped(pair.ue_interface, before.up, link.up, kind, pair.namespace)
        return up + reshaped(pair.host_interface, before.down, link.down, kind)

    def reshape(self, ue: int, link: Duplex) -> None:
        """Change a UE's link while packets flow; takes some milliseconds.

        Raises:
            BadInput: the link needs netem but tbf is in use.
            TestbedError: a command failed.
        """
        for command in self.change(self.kind, ue, link):
            run(command)
        self.links[ue] = link

    def prefix(self, ue: int) -> list[str]:
        """Command prefix that runs a process in a UE's namespace."""
        return ["ip", "netns", "exec", self.pairs[ue].namespace]

    def host_address(self, ue: int) -> str:
        """IPv4 address at which a UE reaches the host."""
        return self.pairs[ue].host_address

    def ue_address(self, ue: int) -> str:
        """IPv4 address of a UE."""
        return self.pairs[ue].ue_address


class Egress(TcEmulation):
    """Shapes what leaves an existing interface: all traffic, or that to each destination separately.

    This is one direction: on a UE its uplink; on a BS, with the UEs' addresses as destinations, their downlinks.

    Args:
        interface: name of the interface.
        shape: shape of all traffic, or of that to each destination.
        destinations: IPv4 addresses; other traffic is then not shaped.
        qdisc: queueing discipline that shapes.
        plain: whether `reshape` will only set rates; None: whether `shape` only has a rate.
        force: 2 or more allows an interface with the default route.
        state: directory of the claims (see `Ledger`).
        say: called with each status line.

    Raises:
        BadInput: on entering, as `emulation` and `choose`.
    """

    def __init__(
        self, interface: str, shape: LinkShape, destinations: Sequence[str] = (), qdisc: Qdisc = "auto",
        plain: bool | None = None, force: int = 0, state: Path | None = None, say: Say = lambda _: None,
    ) -> None:  # fmt: skip
        super().__init__(qdisc, shape.plain if plain is None else plain, force, state, say)
        self.interface, self.shape, self.destinations = check_interface(interface), shape, tuple(destinations)

    def __enter__(self) -> Egress:
        """Shape the traffic."""
        require_root()
        if self.destinations:
            require("htb")
        self._enter()
        return self

    def plan(self, kind: Kind) -> Plan:
        """The interface in use, and the commands that shape it."""
        if self.destinations:
            shaping = htb(self.interface, dict.fromkeys(self.destinations, self.shape), kind, mtu=self._mtu)
        else:
            shaping = shaped(self.interface, self.shape, kind, mtu=self._mtu)
        return Plan((*single_frames(self.interface), *shaping), interfaces=(self.interface,))

    def change(self, kind: Kind, shape: LinkShape) -> list[Command]:
        """Commands that change the shape."""
        if self.destinations:
            return htb(
                self.interface, dict.fromkeys(self.destinations, shape), kind, verb="change", mtu=self._mtu
            )  # fmt: skip
        return reshaped(self.interface, self.shape, shape, kind, mtu=self._mtu)

    def reshape(self, shape: LinkShape) -> None:
        """Change the shape while packets flow.

        Raises:
            BadInput: the shape needs netem, which the kernel lacks; or a rate is missing and there are destinations.
            TestbedError: a command failed.
        """
        for command in self.change(self.kind, shape):
            run(command)
        self.shape = shape

    @property
    def _mtu(self) -> int:
        """The interface's MTU; Ethernet's if it does not exist, as is allowed in a dry run."""
        try:
            return int((INTERFACES / self.interface / "mtu").read_text())
        except (OSError, ValueError):
            return 1500
