"""User-mode Linux: a kernel as an ordinary process, with qdiscs that the host may lack; needs no root."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

KERNEL = "linux.uml"
MODULES = Path("/usr/lib/uml/modules")
WIDE_XSTATE = Path(__file__).with_name("uml_xstate.c")
FAILED = 125
INIT = f"""#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/run/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/tmp /run/modules/lib
ln -s {MODULES} /run/modules/lib/modules
modprobe -d /run/modules -a sch_netem sch_tbf sch_htb cls_u32 veth
ip link set lo up
mount -t hostfs none "$UML_JOB" -o "$UML_JOB"
sh "$UML_JOB/command.sh" >"$UML_JOB/output" 2>&1 </dev/null
echo $? >"$UML_JOB/code"
echo o >/proc/sysrq-trigger
sleep 9
"""
"""The guest's first process. Its root is the host's, read-only; the job's folder can be written to."""


@dataclass(frozen=True)
class Booted:
    """Result of a guest's script."""

    code: int
    """The script's exit code; `FAILED` if it did not end."""
    output: str
    console: str


def uml_available() -> str | None:
    """Why no guest can be booted here; None: one can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "user-mode Linux needs Linux on x86-64"
    if shutil.which(KERNEL) is None:
        return f"no {KERNEL} (apt install user-mode-linux)"
    if shutil.which("modprobe") is None:
        return "no modprobe (apt install kmod)"
    if not any(MODULES.glob("*/kernel/net/sched/sch_netem.ko*")):
        return f"no sch_netem below {MODULES}"
    if _wide_registers() and shutil.which("cc") is None:
        return "no C compiler, and this processor's registers are more than user-mode Linux knows (apt install gcc)"
    return None


def boot(script: str, folder: Path, timeout_s: float = 120.0, memory_mb: int = 1024) -> Booted:
    """Boot a guest, run a shell script as its root, and switch it off.

    Args:
        script: sees the host's files.
        folder: an empty one on the host.
        timeout_s: after this the guest is killed.
        memory_mb: of the guest; the host gives what is used.
    """
    init, console = folder / "init.sh", folder / "console"
    init.write_text(INIT)
    init.chmod(0o755)
    (folder / "command.sh").write_text(script)
    command = [
        KERNEL, f"mem={memory_mb}M", f"uml_dir={folder}/", "umid=guest", "root=/dev/root", "rootfstype=hostfs",
        "hostfs=/", "ro", "quiet", f"init={init}", "con=null", "con0=null,fd:1", f"UML_JOB={folder}",
    ]  # fmt: skip
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    if _wide_registers():
        environment["LD_PRELOAD"] = str(_whole_registers(folder))
    with console.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
        finally:
            _kill(process)
    code, output = folder / "code", folder / "output"
    return Booted(
        int(code.read_text()) if code.exists() else FAILED,
        output.read_text(errors="replace") if output.exists() else "",
        console.read_text(errors="replace"),
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The guest's processes are the host's too, all in one group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def _wide_registers() -> bool:
    """Whether the processor has AMX, whose registers user-mode Linux 6.1 leaves out; then the host refuses the rest."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return "amx_tile" in flags.split()


def _whole_registers(folder: Path) -> Path:
    """A library to be loaded before the C library, whose `ptrace` completes the registers."""
    library = folder / "xstate.so"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(WIDE_XSTATE), "-ldl"], check=True, timeout=60
    )  # fmt: skip
    return library
