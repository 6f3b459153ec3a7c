"""Sets up an emulation and undoes it: at the end, or on the next start after a crash."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.channel.tc.commands import (
    Command,
    check_interface,
    clear,
    default_interfaces,
    is_default,
    root_qdisc,
)
from testbed.channel.tc.execute import INTERFACES, attempt, last_line, require_root, run
from testbed.channel.tc.offloads import most_segments, offload, offloads_on, segments
from testbed.channel.tc.pair import NamespacePair, delete_pair
from testbed.channel.tc.state import Claim, Ledger, own_claim
from testbed.errors import BadInput, TestbedError
from testbed.process.interrupts import held_back

Say = Callable[[str], None]
NAMESPACES = Path("/var/run/netns")


@dataclass(frozen=True)
class Plan:
    """Resources of an emulation, and the commands that set it up."""

    apply: tuple[Command, ...]
    interfaces: tuple[str, ...] = ()
    """Existing interfaces."""
    pairs: tuple[int, ...] = ()
    """Indices of the UE namespaces that it creates."""


@contextlib.contextmanager
def emulation(plan: Plan, force: int = 0, state: Path | None = None, say: Say = lambda _: None) -> Iterator[None]:
    """Run the plan's commands on entering, and undo them on leaving in any way.

    What the emulation uses is first recorded as a claim (in `state`, by default /run/testbed). Before that, emulations
    that ended without cleaning up are undone from their claims.

    Args:
        plan: what to set up.
        force: 2 or more allows an interface with the default route.
        state: directory of the claims.
        say: called with a line per cleanup.

    Raises:
        BadInput: not root; an interface that does not exist, has the default route or a foreign qdisc; or something
            that another emulation uses.
        TestbedError: a command failed, or not everything could be undone.
    """
    require_root()
    ledger = Ledger(state)
    with ledger.locked():
        clean(ledger, say)
        for interface in plan.interfaces:
            _check_interface(interface, force)
        _check_free(plan, ledger)
        limits = {name: most for name in plan.interfaces if (most := _segments(name)) is not None}
        claim = own_claim({name: _offloads(name) for name in plan.interfaces}, list(plan.pairs), limits)
        path = ledger.write(claim)
    try:
        _apply(plan.apply, say)
        yield
    finally:
        with held_back():  # undoing takes a moment, and half of it would need cleanup on the next start
            restore(claim)
            path.unlink(missing_ok=True)


def clean(ledger: Ledger, say: Say = lambda _: None) -> None:
    """Undo emulations whose processes have ended; the ledger must be locked.

    Raises:
        TestbedError: something could not be undone.
    """
    ledger.tidy()
    for path, claim in ledger.claims():
        if claim.alive or not (claim.gone or claim.here):
            continue
        if not claim.gone:
            restore(claim)
            say(
                f"cleaned up after process {claim.pid}, which ended without doing so: {', '.join(sorted(claim.things))}"
            )
        path.unlink(missing_ok=True)


def restore(claim: Claim) -> None:
    """Undo everything in a claim that still exists.

    Raises:
        TestbedError: something still exists afterwards.
    """
    complaints = []
    for command in undo(claim.interfaces, claim.pairs, claim.segments):
        done = attempt(command)
        if done.returncode:
            complaints.append(f"{' '.join(command)}: {last_line(done.stderr)}")
    pairs = [NamespacePair(index) for index in claim.pairs]
    left = [pair.namespace for pair in pairs if (NAMESPACES / pair.namespace).exists()]
    left += [pair.host_interface for pair in pairs if (INTERFACES / pair.host_interface).exists()]
    left += [name for name in claim.interfaces if (INTERFACES / name).exists() and not is_default(_root(name))]
    if left:
        raise TestbedError(f"could not restore {', '.join(left)}: {'; '.join(complaints)}")


def undo(interfaces: dict[str, list[str]], pairs: list[int], limits: dict[str, int]) -> list[Command]:
    """Commands that undo an emulation: interfaces with the offloads to switch on again, UE namespaces, and the segments
    per packet that interfaces had.
    """
    commands = []
    for interface, offloads in interfaces.items():
        commands += clear(interface) + offload(interface, offloads, on=True)
    commands += [segments(interface, most) for interface, most in limits.items()]
    for index in pairs:
        commands += delete_pair(index)
    return commands


def _check_interface(name: str, force: int) -> None:
    if not (INTERFACES / check_interface(name)).exists():
        known = ", ".join(sorted(path.name for path in INTERFACES.iterdir() if path.is_symlink()))
        raise BadInput(f"no interface {name!r}; there are {known}")
    routes = [run(["ip", family, "-j", "route", "show", "table", "all"]) for family in ("-4", "-6")]
    if force < 2 and any(name in default_interfaces(text) for text in routes):
        raise BadInput(f"{name} carries the default route, so a mistake cuts this machine off; force it twice to go on")


def _check_free(plan: Plan, ledger: Ledger) -> None:
    """Refuse a plan that uses what another emulation or a foreign program uses."""
    wanted = {*plan.interfaces, *(f"UE {index}" for index in plan.pairs)}
    for _, claim in ledger.claims():
        taken = wanted & claim.things if claim.here else set()
        if taken:
            held = ", ".join(sorted(taken))
            raise BadInput(f"process {claim.pid} emulates a link on {held}; stop it first, or use others")
    for pair in map(NamespacePair, plan.pairs):
        for name, there in ((pair.namespace, NAMESPACES), (pair.host_interface, INTERFACES)):
            if (there / name).exists():
                command = "ip netns delete" if there == NAMESPACES else "ip link delete"
                raise BadInput(f"{name} exists and is not ours; remove it ({command} {name}) or use other UEs")
    for name in plan.interfaces:
        qdisc = _root(name)
        if not is_default(qdisc):
            kind = qdisc["kind"] if qdisc else ""
            raise BadInput(f"{name} has a foreign qdisc ({kind}); remove it: tc qdisc del dev {name} root")


def _root(interface: str) -> dict[str, object] | None:
    return root_qdisc(run(["tc", "-j", "qdisc", "show", "dev", interface]))


def _apply(commands: Sequence[Command], say: Say) -> None:
    """Run commands in order; if one that makes the kernel send single frames fails, the emulation goes on without."""
    coarse = ""
    for command in commands:
        if "ethtool" not in command and "gso_max_segs" not in command:
            run(command)
        elif "ethtool" in command and shutil.which("ethtool") is None:
            coarse = "no ethtool (apt install ethtool)"
        elif (done := attempt(command)).returncode:
            coarse = last_line(done.stderr)
    if coarse:
        say(f"offloads stay on, so up to 64 kB are lost or kept as one packet: {coarse}")


def _offloads(interface: str) -> list[str]:
    """Offloads to switch on again later; empty if `ethtool` reports none, since none is switched off then."""
    if shutil.which("ethtool") is None:
        return []
    return offloads_on(attempt(["ethtool", "-k", interface]).stdout)


def _segments(interface: str) -> int | None:
    """Segments per packet to set again later."""
    return most_segments(attempt(["ip", "-d", "-j", "link", "show", "dev", interface]).stdout)
