"""Recorded boards: contents of system files and output of commands, written below a directory.

Sources, all public, and what of each is here:

- models and compatible strings: Linux, arch/arm64/boot/dts/nvidia/tegra234-p3737-0000+p3701-0000.dts and
  tegra234-p3768-0000+p3767-0005.dts, arch/arm64/boot/dts/broadcom/bcm2712-rpi-5-b.dts and bcm2711-rpi-4-b.dts; the Pi's
  firmware appends the revision: raspinfo in raspberrypi/linux issue 5876, whose `throttled=0x0` is here too
- `/etc/nv_tegra_release`: of an AGX Orin with Jetson Linux 36.3 (JetPack 6), whole, from the page "Jetson Setup" of the
  documentation of NVIDIA's Sionna Research Kit (github.com/NVlabs/sionna-rk); the Orin Nano is given the same file
- `nvpmodel -q`, MAXN on two lines: anduril/jetpack-nixos pull request 460 (a Thor); the page above has MODE_30W of an
  Orin in the same form. 15W is the Orin Nano's mode 0: written by hand in that form. MAXN_SUPER is its mode 2:
  ARK-Electronics/ark_jetson_kernel pull request 20
- `soctherm_oc` and its files: drivers/thermal/tegra234-oc-event.c of NVIDIA's linux-nv-oot; what each
  counts: NVIDIA Jetson Linux Developer Guide, "Platform Power and Performance". The counts are made up
- `throttled=0x50000` and `0x50005`: raspberrypi/firmware issue 615; the bits: Raspberry Pi documentation, "vcgencmd"
- `Power save: on`: iw's source, power_save.c; governors: Linux, admin-guide/pm/cpufreq.rst; clock sources: Linux,
  admin-guide/kernel-parameters.txt and drivers/clocksource/arm_arch_timer.c
- version.json: shape and version from "Nvidia Support" in the documentation of Network Optix' Nx AI Manager, which
  shows CUDA 12.2 of a PC; JetPack 6.0 comes with CUDA 12.2 too

Numbers of cores are the boards' own. Sizes of memory are near theirs and made up in the last digits, as is what of it
is free; the lines around them are Linux's formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from testbed.experiments.doctor.board import Machine

JETSON_RELEASE = """\
# R36 (release), REVISION: 3.0, GCID: 36923193, BOARD: generic, EABI: aarch64, DATE: Fri Jul 19 23:24:25 UTC 2024
# KERNEL_VARIANT: oot
TARGET_USERSPACE_LIB_DIR=nvidia
TARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia
"""
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
GOVERNOR = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"


def write(root: Path, files: Mapping[str, str]) -> None:
    """Files below a directory."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def wifi(root: Path, name: str, driver: str) -> None:
    """A Wi-Fi interface that is up."""
    interface, module = root / "sys/class/net" / name, root / "sys/bus/drivers" / driver
    write(interface, {"operstate": "up\n", "device/uevent": ""})
    (interface / "wireless").mkdir()
    module.mkdir(parents=True)
    (interface / "device/driver").symlink_to(module)


def over_currents(hwmon: int, counts: Mapping[int, int]) -> dict[str, str]:
    """Over-current counters of an Orin, all of which throttle."""
    folder = f"sys/class/hwmon/hwmon{hwmon}"
    files = {f"{folder}/name": "soctherm_oc\n"}
    for number, count in counts.items():
        files |= {f"{folder}/oc{number}_event_cnt": f"{count}\n", f"{folder}/oc{number}_throt_en": "1\n"}
    return files


def memory(total_kib: int, available_kib: int) -> str:
    """`/proc/meminfo`'s first lines."""
    return f"MemTotal:       {total_kib:8d} kB\nMemFree:        {1024:8d} kB\nMemAvailable:   {available_kib:8d} kB\n"


def cores(count: int) -> str:
    """`/proc/cpuinfo` of an Arm kernel, as far as it is read."""
    return "".join(f"processor\t: {i}\nBogoMIPS\t: 62.50\n\n" for i in range(count))


def jetson_agx_orin(root: Path) -> dict[str, str]:
    """An AGX Orin set up for measurements; returns the output of its commands."""
    write(
        root,
        {
            "machine": "aarch64\n",
            "proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
            "proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0000\0nvidia,p3701-0000\0nvidia,tegra234\0",
            "proc/cpuinfo": cores(12),
            "proc/meminfo": memory(64_349_336, 60_000_000),
            "etc/nv_tegra_release": JETSON_RELEASE,
            "usr/local/cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.2.20230823"}}\n',
            **over_currents(3, {1: 0, 2: 0, 3: 0}),
            **{GOVERNOR.format(i): "performance\n" for i in range(12)},
            CLOCK: "arch_sys_counter\n",
        },
    )
    nvcc = root / "usr/local/cuda/bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("")
    nvcc.chmod(0o755)
    wifi(root, "wlan0", "rtw88_8822ce")
    return {
        "nvpmodel -q": "NV Power Mode: MAXN\n0\n",
        "iw dev wlan0 get power_save": "Power save: off\n",
        "timedatectl show --property=NTPSynchronized --value": "yes\n",
    }


def jetson_orin_nano(root: Path) -> dict[str, str]:
    """An Orin Nano with factory settings: a medium power mode, no CUDA toolkit, clocks that follow the load."""
    write(
        root,
        {
            "machine": "aarch64\n",
            "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
            "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0nvidia,tegra234\0",
            "proc/cpuinfo": cores(6),
            "proc/meminfo": memory(7_802_744, 6_000_000),
            "etc/nv_tegra_release": JETSON_RELEASE,
            **over_currents(1, {1: 0, 2: 0, 3: 37}),
            **{GOVERNOR.format(i): "schedutil\n" for i in range(6)},
            CLOCK: "arch_sys_counter\n",
        },
    )
    return {"nvpmodel -q": "NV Power Mode: 15W\n0\n", "timedatectl show --property=NTPSynchronized --value": "yes\n"}


def raspberry_pi_5(root: Path) -> dict[str, str]:
    """A Pi 5 set up for measurements."""
    write(
        root,
        {
            "machine": "aarch64\n",
            "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
            "proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0",
            "proc/cpuinfo": cores(4),
            "proc/meminfo": memory(8_257_664, 7_600_000),
            **{GOVERNOR.format(i): "performance\n" for i in range(4)},
            CLOCK: "arch_sys_counter\n",
            "run/systemd/timesync/synchronized": "",
        },
    )
    (root / "etc/NetworkManager").mkdir(parents=True)
    (root / "run/systemd/system").mkdir(parents=True)
    wifi(root, "wlan0", "brcmfmac")
    return {"vcgencmd get_throttled": "throttled=0x0\n", "iw dev wlan0 get power_save": "Power save: off\n"}


def raspberry_pi_4(root: Path) -> dict[str, str]:
    """A Pi 4 with a weak power supply, Wi-Fi power saving and the default governor."""
    write(
        root,
        {
            "machine": "aarch64\n",
            "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
            "proc/device-tree/compatible": "raspberrypi,4-model-b\0brcm,bcm2711\0",
            "proc/cpuinfo": cores(4),
            "proc/meminfo": memory(3_884_344, 700_000),
            **{GOVERNOR.format(i): "ondemand\n" for i in range(4)},
            CLOCK: "arch_sys_counter\n",
        },
    )
    wifi(root, "wlan0", "brcmfmac")
    return {"vcgencmd get_throttled": "throttled=0x50005\n", "iw dev wlan0 get power_save": "Power save: on\n"}


BOARDS = {
    "jetson-agx-orin": jetson_agx_orin,
    "jetson-orin-nano": jetson_orin_nano,
    "raspberry-pi-5": raspberry_pi_5,
    "raspberry-pi-4": raspberry_pi_4,
}


def recorded(name: str, root: Path, *, free_bytes: int = 32 * 10**9) -> Machine:
    """One of these boards below `root`."""
    answers = BOARDS[name](root)
    return Machine(root, lambda *command: answers.get(" ".join(command), ""), "aarch64", 64, free_bytes)
