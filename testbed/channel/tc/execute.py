"""Runs single commands of an emulation, and reports missing programs, kernel modules and rights."""

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
PACKAGES = {"tc": "iproute2", "ip": "iproute2", "ss": "iproute2", "ethtool": "ethtool", "unshare": "util-linux"}


def run(command: Command, text: str | None = None) -> str:
    """Run a command; returns its output. `text` is its input, if any.

    It runs in its own session, so that Ctrl-C in the terminal does not interrupt it halfway.

    Raises:
        BadInput: a missing program, kernel module, right or interface, named in the message.
        TestbedError: any other failure, or a timeout.
    """
    done = attempt(command) if text is None else attempt(command, text)
    if done.returncode:
        raise _explained(command, done.stderr or done.stdout)
    return done.stdout


def has(kind: str) -> bool:
    """Whether this kernel has a qdisc (netem, tbf, htb), tested in a temporary network namespace.

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
    """The qdisc to use: netem if the kernel has it, else tbf if `plain` (only rates are needed).

    Raises:
        BadInput: the kernel lacks the qdisc; the message names the module.
    """
    require_root()
    if kind == "tbf" or (kind == "auto" and plain and not has("netem")):
        require("tbf")
        return "tbf"
    require("netem")
    return "netem"


def require(kind: str) -> None:
    """Check that the kernel has a qdisc.

    Raises:
        BadInput: it does not.
    """
    if not has(kind):
        raise BadInput(_missing(kind))


def require_root() -> None:
    """Check that this process can change network settings.

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


def attempt(command: Command, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command without checking its exit code.

    Raises:
        BadInput: the program is not installed.
        TestbedError: a timeout.
    """
    try:
        return subprocess.run(
            command, input=text or "", capture_output=True, text=True, timeout=COMMAND_S, check=False,
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
        return True  # the message of kernels before 4.16
    words = ("qdisc kind is unknown", "Unknown device type", "TC classifier not found")
    return any(part in complaint for part in words)


def _missing(kind: str) -> str:
    module = MODULES.get(kind, kind)
    text = f"this kernel has no {kind}: load or install the module {module} (modprobe {module}; Ubuntu has it in "
    return f"{text}linux-modules-extra)" + ("; a rate alone works with tbf" if kind == "netem" else "")


def _no_program(name: str) -> str:
    return f"no program {name!r} on this machine; install it: apt install {PACKAGES.get(name, name)}"


def last_line(text: str) -> str:
    """The last line of a program's output."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")
