"""Checks of the board and its system that affect measurements or field use, with a fix for each."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from testbed.channel.measuring.wifi import wifi_interface
from testbed.experiments.doctor.board import (
    JETPACK_6,
    Board,
    Machine,
    cuda_version,
    detect,
    governors,
    memory_bytes,
    over_currents,
    parse_power_mode,
    parse_power_save,
    parse_throttled,
    wifi_driver,
)
from testbed.experiments.doctor.checks import Finding, output
from testbed.power.sensors.pi import NOW

GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
"""Clock sources readable without a system call."""
DISK_BYTES, MEMORY_BYTES = 4 * 10**9, 10**9
SINCE_BOOT = 16
"""Offset of the since-boot bits in `get_throttled`."""
SCRIPTS = {"jetson": "hardware/jetson.sh", "raspberry-pi": "hardware/raspberry-pi.sh", "x86": "hardware/x86-ue.sh"}
SUPPLY = {"bcm2712": "the 27 W supply (5 A at 5.1 V)", "bcm2711": "the 15 W supply (3 A at 5.1 V)"}


def here() -> Machine:
    """This machine."""
    return Machine(ask=output, free_bytes=shutil.disk_usage(Path.cwd()).free)


def examine_board(machine: Machine | None = None) -> list[Finding]:
    """Examine the board and its system; changes nothing.

    Args:
        machine: None: this machine.
    """
    machine = machine or here()
    board = detect(machine)
    own = {"jetson": _jetson, "raspberry-pi": _raspberry_pi}.get(board.kind)
    return [
        _named(board),
        *(own(machine, board) if own else []),
        _governor(machine, board),
        _wifi(machine),
        _clock(machine),
        _synchronised(machine),
        _disk(machine),
        _memory(machine),
    ]


def _named(board: Board) -> Finding:
    found = f"{board.model} ({board.soc})" if board.soc else board.model
    return Finding(
        "board", board.supported, found, "set-up scripts exist for Jetson Orin, Raspberry Pi 5 and 4, and x86-64"
    )


# ---------------------------------------------------------------- Jetson


def _jetson(machine: Machine, board: Board) -> list[Finding]:
    return [_jetpack(board), _cuda(machine), _offload(), _power_mode(machine), _over_current(machine)]


def _jetpack(board: Board) -> Finding:
    fix = "flash JetPack 6 (Jetson Linux 36) with SDK Manager"
    if board.release is None:
        return Finding("JetPack", False, "no /etc/nv_tegra_release", fix)
    major, minor = board.release
    jetpack = " (JetPack 6)" if major == JETPACK_6 else ""
    return Finding("JetPack", major == JETPACK_6, f"Jetson Linux {major}.{minor}{jetpack}", fix)


def _cuda(machine: Machine) -> Finding:
    version = cuda_version(machine.text("usr/local/cuda/version.json"))
    return Finding("CUDA toolkit", version is not None, version or "not installed", "sudo apt install nvidia-jetpack")


def _offload() -> Finding:
    """Whether the installed llama.cpp was built with CUDA; checks for the library without loading it."""
    spec = importlib.util.find_spec("llama_cpp")
    there = spec is not None and any((Path(str(spec.origin)).parent / "lib").glob("libggml-cuda*"))
    return Finding("llama.cpp on the GPU", there, "built with CUDA" if there else "built without CUDA, or missing",
                   "hardware/jetson.sh builds it with CUDA")  # fmt: skip


def _power_mode(machine: Machine) -> Finding:
    mode = parse_power_mode(machine.ask("nvpmodel", "-q"))
    found = "unknown: nvpmodel failed" if mode is None else f"{mode[0]} (mode {mode[1]})"
    fix = "sudo nvpmodel -m 0, or the number of MAXN or MAXN_SUPER in /etc/nvpmodel.conf; then sudo jetson_clocks"
    return Finding("power mode", mode is not None and mode[0].startswith("MAXN"), found, fix)


def _over_current(machine: Machine) -> Finding:
    counts = over_currents(machine)
    found = ", ".join(f"{name} {count}" for name, count in counts.items()) or "no counters"
    fix = "a stronger supply, or a lower power mode: under-voltage (oc1) and over-current (oc2, oc3) slow the clocks"
    return Finding("throttled since boot", not any(counts.values()), found, fix)


# ---------------------------------------------------------------- Raspberry Pi


def _raspberry_pi(machine: Machine, board: Board) -> list[Finding]:
    whole = machine.architecture == "aarch64" and machine.bits == 64
    found = f"{machine.architecture}, {machine.bits}-bit programs"
    return [
        Finding("64-bit system", whole, found, "flash Raspberry Pi OS (64-bit)"),
        _throttled(machine, board),
    ]


def _throttled(machine: Machine, board: Board) -> Finding:
    bits = parse_throttled(machine.ask("vcgencmd", "get_throttled"))
    if bits is None:
        return Finding(
            "throttling", False, "unknown: vcgencmd failed", "sudo usermod -aG video $USER, then log in again"
        )
    now, before = ([name for bit, name in NOW.items() if bits >> bit + by & 1] for by in (0, SINCE_BOOT))
    parts = [f"{', '.join(found)} {when}" for found, when in ((now, "now"), (before, "since boot")) if found]
    weak = NOW[0] in now + before
    supply = SUPPLY.get(board.soc, "a stronger supply")
    fix = f"{supply} and a short cable" if weak else "a fan or the active cooler"
    return Finding("throttling", not bits, "; ".join(parts) or "never since boot", f"{fix}, then reboot")


# ---------------------------------------------------------------- every board


def _governor(machine: Machine, board: Board) -> Finding:
    found = governors(machine)
    script = SCRIPTS.get(board.kind, "hardware/x86-ue.sh")
    fix = f"{script} --tune, or: echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    return Finding("clock governor", found in ([], ["performance"]), ", ".join(found) or "clocks are not scaled", fix)


def _wifi(machine: Machine) -> Finding:
    name = wifi_interface(machine.root / "sys/class/net")
    if name is None:
        return Finding("Wi-Fi", True, "no interface (wired)", "")
    saves = parse_power_save(machine.ask("iw", "dev", name, "get", "power_save"))
    saving = {True: "power saving on", False: "power saving off", None: "power saving unknown"}[saves]
    driver = wifi_driver(machine, name)
    fix = "apt install iw" if saves is None else f"sudo iw dev {name} set power_save off; hardware/*.sh --tune keeps it"
    return Finding("Wi-Fi", saves is False, ", ".join(part for part in (name, driver, saving) if part), fix)


def _clock(machine: Machine) -> Finding:
    source = machine.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
    fix = "see `dmesg | grep -i clocksource` for why the kernel rejected the fast one; boot with clocksource=tsc"
    return Finding("clock source", source in GOOD_CLOCKS, source or "unknown", fix)


def _synchronised(machine: Machine) -> Finding:
    synchronised = machine.ask("timedatectl", "show", "--property=NTPSynchronized", "--value").strip() == "yes"
    synchronised = synchronised or (machine.root / "run/systemd/timesync/synchronized").exists()
    return Finding("time synchronised", synchronised, "yes" if synchronised else "no, or unknown",
                   "sudo timedatectl set-ntp true (for dates of runs; latencies need no common clock)")  # fmt: skip


def _disk(machine: Machine) -> Finding:
    free = machine.free_bytes
    found = "unknown" if free is None else f"{free / 1e9:.1f} GB free"
    return Finding("disk", free is not None and free >= DISK_BYTES, found,
                   f"free {DISK_BYTES / 1e9:.0f} GB here, for runs and the build of llama.cpp")  # fmt: skip


def _memory(machine: Machine) -> Finding:
    found = memory_bytes(machine.text("proc/meminfo"))
    total, free = found.get("MemTotal", 0), found.get("MemAvailable", 0)
    return Finding("memory", free >= MEMORY_BYTES, f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB available",
                   "close other programs; `testbed ue memory` shows what a drafter needs")  # fmt: skip
