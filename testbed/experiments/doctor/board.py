"""Detects the board and parses its system files: pure functions over a root directory, testable on recorded trees."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Ask = Callable[..., str]
"""Runs a command and returns its output; empty if it fails or is missing."""
JETSON_SOC, PI_SOC = re.compile(r"nvidia,(tegra\d+)$"), re.compile(r"brcm,(bcm2\d{3})$")
ORIN, PI_5, PI_4 = "tegra234", "bcm2712", "bcm2711"
JETPACK_6 = 36
"""Major release of Jetson Linux in JetPack 6."""


@dataclass(frozen=True)
class Machine:
    """The machine to examine.

    Attributes:
        root: directory to use as `/`.
        ask: runs commands for facts that are in no file.
        architecture: as printed by `uname -m`.
        bits: pointer size of this Python; a 64-bit kernel may run a 32-bit system.
        free_bytes: free disk space where runs are written; None: unknown.
    """

    root: Path = Path("/")
    ask: Ask = field(default=lambda *_: "")
    architecture: str = platform.machine()
    bits: int = sys.maxsize.bit_length() + 1
    free_bytes: int | None = None

    def text(self, path: str) -> str:
        """Contents of a file, stripped of NULs and blanks; empty if unreadable."""
        try:
            return (self.root / path).read_bytes().decode(errors="replace").strip("\0\n\t ")
        except OSError:
            return ""


@dataclass(frozen=True)
class Board:
    """A detected board.

    Attributes:
        soc: `tegra234` for Orin, `bcm2712` for the Pi 5, …; empty on a PC.
        release: version of Jetson Linux, such as (36, "4.7"); None elsewhere.
    """

    kind: Literal["jetson", "raspberry-pi", "x86", "other"]
    model: str
    soc: str = ""
    release: tuple[int, str] | None = None

    @property
    def supported(self) -> bool:
        """Whether `hardware/` has a set-up script for this board."""
        if self.kind == "jetson":
            return self.soc == ORIN
        return self.soc in (PI_5, PI_4) if self.kind == "raspberry-pi" else self.kind == "x86"


def detect(machine: Machine) -> Board:
    """Detect the board from the device tree's root node or, on a PC, from the DMI data of its firmware."""
    model = machine.text("proc/device-tree/model")
    for compatible in machine.text("proc/device-tree/compatible").split("\0"):
        if match := JETSON_SOC.match(compatible):
            release = parse_release(machine.text("etc/nv_tegra_release"))
            return Board("jetson", model, match[1], release)
        if match := PI_SOC.match(compatible):
            return Board("raspberry-pi", model, match[1])
    if machine.architecture in ("x86_64", "AMD64"):
        named = " ".join(machine.text(f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")).strip()
        return Board("x86", named or cpu_name(machine.text("proc/cpuinfo")) or "a PC")
    return Board("other", model or machine.architecture)


# ---------------------------------------------------------------- files


def parse_release(text: str) -> tuple[int, str] | None:
    """Parse `/etc/nv_tegra_release`: `# R36 (release), REVISION: 4.7, …` gives (36, "4.7")."""
    match = re.match(r"# R(\d{1,3}) \(release\), REVISION: ([0-9.]{1,12})", text)
    return (int(match[1]), match[2]) if match else None


def cpu_name(cpuinfo: str) -> str:
    """`model name` of the first processor in `/proc/cpuinfo`; empty on Arm."""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else ""


def memory_bytes(meminfo: str) -> dict[str, int]:
    """Entries of `/proc/meminfo`, in bytes."""
    found = re.findall(r"^(\w+):\s+(\d{1,15}) kB$", meminfo, re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in found}


def cuda_version(version_json: str) -> str | None:
    """CUDA version from `/usr/local/cuda/version.json`; None if missing or unreadable."""
    try:
        return str(json.loads(version_json)["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        return None


def governors(machine: Machine) -> list[str]:
    """Distinct CPU frequency governors in use; empty if frequency scaling is off."""
    files = sorted(machine.root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    return sorted({machine.text(str(file.relative_to(machine.root))) for file in files} - {""})


def over_currents(machine: Machine) -> dict[str, int]:
    """A Jetson's throttling counts since boot for under-voltage (oc1) and over-current (oc2, oc3), from hwmon."""
    counts = {}
    for file in sorted(machine.root.glob("sys/class/hwmon/hwmon*/oc[0-9]_event_cnt")):
        text = machine.text(str(file.relative_to(machine.root)))
        if text.isdecimal():
            counts[file.name.partition("_")[0]] = int(text)
    return counts


# ---------------------------------------------------------------- command output


def parse_power_mode(text: str) -> tuple[str, int] | None:
    """Parse `nvpmodel -q`: `NV Power Mode: MAXN`, with the mode number on the next line."""
    match = re.search(r"^NV Power Mode: *(\S+)\s+(\d{1,3})\s*$", text, re.MULTILINE)
    return (match[1], int(match[2])) if match else None


def parse_throttled(text: str) -> int | None:
    """Parse `vcgencmd get_throttled`: `throttled=0x50005`."""
    match = re.fullmatch(r"throttled=0x([0-9a-fA-F]{1,8})", text.strip())
    return int(match[1], 16) if match else None


def parse_power_save(text: str) -> bool | None:
    """Parse `iw dev IF get power_save`: `Power save: on`; None if the driver does not report it."""
    match = re.fullmatch(r"Power save: (on|off)", text.strip())
    return None if match is None else match[1] == "on"


def wifi_driver(machine: Machine, interface: str) -> str:
    """Kernel driver of a Wi-Fi interface; empty if not in sysfs."""
    link = machine.root / "sys/class/net" / interface / "device/driver"
    return link.resolve().name if link.exists() else ""
