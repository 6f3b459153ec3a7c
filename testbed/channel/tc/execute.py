"""Runs one command of an emulation, and says what a machine lacks that cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from testbed.channel.tc.commands import Command, Kind
from testbed.errors import BadInput, TestbedError

COMMAND_S = 20.0
INTERFACES = Path("/sys/class/net")
PROBES = {
    "netem": "netem delay 1ms",
    "tbf": "tbf rate 1mbit burst 5000 limit 50000",
    "htb": "htb",
}
MODULES = {"netem": "sch_netem", "tbf": "sch_tbf", "htb": "sch_htb", "u32": "cls_u32", "veth": "veth"}
PACKAGES = {"tc": "iproute2", "ip": "iproute2", "ethtool": "ethtool", "unshare": "util-linux"}


def run(command: Command) -> str:
    """Run one command to its end; returns what it printed.

    It gets no Ctrl-C from a terminal: a setting is made or taken back as a whole.

    Raises:
        BadInput: a program, kernel module, right or interface is missing; the message says which.
        TestbedError: it failed otherwise, or did not end.
    """
    done = attempt(command)
    if done.returncode:
        raise _explained(command, done.stderr or done.stdout)
    return done.stdout


def has(kind: str) -> bool:
    """Whether this kernel has a qdisc (netem, tbf, htb), tried in a network namespace that ends with the trial.

    Raises:
        BadInput: not root, or no `tc`.
    """
    command = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", *PROBES[kind].split()]
    done = attempt(command)
    if done.returncode and _lacks_module(command, done.stderr):
        return False
    if done.returncode:
        raise _explained(command, done.stderr)
    return True


def choose(kind: Literal["auto", "netem", "tbf"], plain: bool) -> Kind:
    """What shapes: netem where the kernel has it, else tbf if all is `plain`, a rate at most.

    Raises:
        BadInput: the kernel lacks what is needed; the message says which module that is.
    """
    require_root()
    if kind == "tbf" or (kind == "auto" and plain and not has("netem")):
        require("tbf")
        return "tbf"
    require("netem")
    return "netem"


def require(kind: str) -> None:
    """Make sure that the kernel has a qdisc.

    Raises:
        BadInput: it has not.
    """
    if not has(kind):
        raise BadInput(_missing(kind))


def require_root() -> None:
    """Make sure that network settings can be changed.

    Raises:
        BadInput: not root, not Linux, or no `tc` and `ip`.
    """
    if not INTERFACES.is_dir():
        raise BadInput("link emulation with tc needs Linux; kind=proxy emulates a link anywhere")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise BadInput(_no_program(program))
    if os.geteuid() != 0:
        raise BadInput("link emulation with tc needs root; kind=proxy emulates a link without it")


def attempt(command: Command) -> subprocess.CompletedProcess[str]:
    """Run one command, whatever comes of it.

    Raises:
        BadInput: there is no such program.
        TestbedError: it did not end.
    """
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S, check=False,
            start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError as exc:
        raise BadInput(_no_program(command[0])) from exc
    except subprocess.TimeoutExpired as exc:
        raise TestbedError(f"{' '.join(command)} did not end within {COMMAND_S:g} s") from exc


def _explained(command: Command, complaint: str) -> TestbedError:
    if _lacks_module(command, complaint):
        return BadInput(_missing(next((kind for kind in MODULES if kind in command), command[0])))
    if "not permitted" in complaint:
        return BadInput("link emulation with tc needs root with all rights (CAP_NET_ADMIN and CAP_SYS_ADMIN)")
    if "Cannot find device" in complaint:
        return BadInput(f"{' '.join(command)}: {last_line(complaint)}")
    return TestbedError(f"{' '.join(command)}: {last_line(complaint)}")


def _lacks_module(command: Command, complaint: str) -> bool:
    if "qdisc" in command and "add" in command and "answers: No such file" in complaint:
        return True  # all that kernels before 4.16 say
    words = ("qdisc kind is unknown", "Unknown device type", "TC classifier not found")
    return any(part in complaint for part in words)


def _missing(kind: str) -> str:
    module = MODULES.get(kind, kind)
    text = f"this kernel has no {kind}: load or install the module {module} (modprobe {module}; Ubuntu has it in "
    return f"{text}linux-modules-extra)" + ("; a rate alone works with tbf" if kind == "netem" else "")


def _no_program(name: str) -> str:
    return f"no program {name!r} on this machine; install it: apt install {PACKAGES.get(name, name)}"


def last_line(text: str) -> str:
    """What a program said last."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
