"""Board detection and findings on recorded system trees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testbed.experiments.doctor.board import (
    Board,
    Machine,
    cpu_name,
    cuda_version,
    detect,
    parse_power_mode,
    parse_power_save,
    parse_release,
    parse_throttled,
)
from testbed.experiments.doctor.board_checks import examine_board
from testbed.experiments.doctor.checks import Finding
from tests.support.boards import BOARDS, CLOCK, recorded, write


def findings(machine: Machine) -> dict[str, Finding]:
    """Findings by name, which are unique."""
    found = examine_board(machine)
    assert len({finding.name for finding in found}) == len(found)
    return {finding.name: finding for finding in found}


def lacking(machine: Machine) -> set[str]:
    """Names of failed checks, each of which must have a fix."""
    wrong = [finding for finding in examine_board(machine) if not finding.ok]
    assert all(finding.fix and finding.found for finding in wrong)
    return {finding.name for finding in wrong}


@pytest.mark.parametrize(
    ("name", "board"),
    [
        ("jetson-agx-orin", Board("jetson", "NVIDIA Jetson AGX Orin Developer Kit", "tegra234", (36, "3.0"))),
        ("jetson-orin-nano", Board("jetson", "NVIDIA Jetson Orin Nano Developer Kit", "tegra234", (36, "3.0"))),
        ("raspberry-pi-5", Board("raspberry-pi", "Raspberry Pi 5 Model B Rev 1.0", "bcm2712")),
        ("raspberry-pi-4", Board("raspberry-pi", "Raspberry Pi 4 Model B Rev 1.4", "bcm2711")),
    ],
)
def test_boards_are_known_by_their_device_tree(name: str, board: Board, tmp_path: Path) -> None:
    assert detect(recorded(name, tmp_path)) == board
    assert board.supported


def test_older_boards_are_known_but_not_supported(tmp_path: Path) -> None:
    xavier = "nvidia,p2972-0000\0nvidia,tegra194\0"
    write(tmp_path / "xavier", {"proc/device-tree/compatible": xavier})
    write(tmp_path / "pi3", {"proc/device-tree/compatible": "raspberrypi,3-model-b-plus\0brcm,bcm2837\0"})
    for name, soc in (("xavier", "tegra194"), ("pi3", "bcm2837")):
        board = detect(Machine(tmp_path / name, architecture="aarch64"))
        assert (board.soc, board.supported) == (soc, False)


def test_a_pc_is_named_by_its_firmware_or_its_processor(tmp_path: Path) -> None:
    machine = Machine(tmp_path, architecture="x86_64")
    assert detect(machine) == Board("x86", "a PC")
    write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 7763\n"})
    assert detect(machine).model == "AMD EPYC 7763"
    write(tmp_path, {"sys/class/dmi/id/sys_vendor": "LENOVO\n", "sys/class/dmi/id/product_name": "20XW\n"})
    assert detect(machine).model == "LENOVO 20XW"


def test_anything_else_is_no_error(tmp_path: Path) -> None:
    machine = Machine(tmp_path, architecture="riscv64")
    assert detect(machine) == Board("other", "riscv64")
    assert {"board", "clock source", "memory"} <= lacking(machine)


# ---------------------------------------------------------------- the doctor


@pytest.mark.parametrize("name", ["jetson-agx-orin", "raspberry-pi-5"])
def test_a_board_that_is_ready_lacks_nothing_of_its_own(name: str, tmp_path: Path) -> None:
    # Whether llama.cpp was built for a GPU is a matter of this Python, not of the recorded tree.
    assert lacking(recorded(name, tmp_path)) - {"llama.cpp on the GPU"} == set()


def test_a_jetson_out_of_the_box(tmp_path: Path) -> None:
    machine = recorded("jetson-orin-nano", tmp_path)
    found = findings(machine)
    assert lacking(machine) >= {"CUDA toolkit", "power mode", "throttled since boot", "clock governor"}
    assert found["JetPack"].found == "Jetson Linux 36.3.0 (JetPack 6)"
    assert found["power mode"].found == "15W (mode 0)"
    assert found["throttled since boot"].found == "oc1 0, oc2 0, oc3 37"
    assert found["Wi-Fi"].found == "no interface (wired)"


def test_maxn_super_is_the_highest_power_mode(tmp_path: Path) -> None:
    machine = replace(recorded("jetson-orin-nano", tmp_path), ask=lambda *_: "NV Power Mode: MAXN_SUPER\n2\n")
    assert findings(machine)["power mode"].ok


def test_an_older_jetpack_is_to_be_flashed(tmp_path: Path) -> None:
    machine = recorded("jetson-agx-orin", tmp_path)
    write(tmp_path, {"etc/nv_tegra_release": "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref\n"})
    found = findings(machine)["JetPack"]
    assert not found.ok and found.found == "Jetson Linux 35.4.1" and "SDK Manager" in found.fix


def test_a_pi_on_a_weak_supply(tmp_path: Path) -> None:
    machine = recorded("raspberry-pi-4", tmp_path)
    found = findings(machine)
    assert lacking(machine) == {"throttling", "clock governor", "Wi-Fi", "time synchronised", "memory"}
    assert found["throttling"].found == "under-voltage, throttled now; under-voltage, throttled since boot"
    assert "15 W supply" in found["throttling"].fix
    assert found["Wi-Fi"].found == "wlan0, brcmfmac, power saving on"
    assert "sudo iw dev wlan0 set power_save off" in found["Wi-Fi"].fix


@pytest.mark.parametrize(
    ("said", "found", "fix"),
    [
        ("throttled=0x50000", "under-voltage, throttled since boot", "27 W supply"),
        ("throttled=0x80008", "thermal now; thermal since boot", "active cooler"),
        ("", "unknown: vcgencmd failed", "video"),
        ("VCHI initialization failed", "unknown: vcgencmd failed", "video"),
    ],
)
def test_why_a_pi_throttles(said: str, found: str, fix: str, tmp_path: Path) -> None:
    machine = replace(recorded("raspberry-pi-5", tmp_path), ask=lambda *_: said)
    finding = findings(machine)["throttling"]
    assert (finding.ok, finding.found) == (False, found)
    assert fix in finding.fix


def test_a_32_bit_system_on_a_64_bit_kernel(tmp_path: Path) -> None:
    machine = replace(recorded("raspberry-pi-5", tmp_path), bits=32)
    assert "64-bit system" in lacking(machine)


def test_little_room_and_a_slow_clock(tmp_path: Path) -> None:
    machine = recorded("raspberry-pi-5", tmp_path, free_bytes=3 * 10**9)
    write(tmp_path, {CLOCK: "hpet\n"})
    assert lacking(machine) == {"disk", "clock source"}


@pytest.mark.parametrize("name", BOARDS)
def test_a_bare_tree_of_any_board_is_no_error(name: str, tmp_path: Path) -> None:
    machine = recorded(name, tmp_path / "whole")
    for part in ("model", "compatible"):
        text = (tmp_path / "whole/proc/device-tree" / part).read_text()
        write(tmp_path / "bare", {f"proc/device-tree/{part}": text})
    bare = Machine(tmp_path / "bare", architecture="aarch64")
    assert detect(bare).soc == detect(machine).soc
    assert lacking(bare) >= {"clock source", "time synchronised", "disk", "memory"}


def test_this_machine_is_examined_without_an_error() -> None:
    assert {finding.name for finding in examine_board()} >= {"board", "clock governor", "disk", "memory"}


# ---------------------------------------------------------------- parsers


def test_what_cannot_be_read_is_unknown() -> None:
    assert parse_release("") is None and parse_release("# R36 (beta)") is None
    assert parse_power_mode("NVPM ERROR: optMask is 1, no request for power mode\n") is None
    assert parse_throttled("throttled=0xZZ") is None and parse_throttled("throttled=0x123456789") is None
    assert parse_power_save("command failed: No such device (-19)") is None
    assert cuda_version("") is None and cuda_version("[]") is None and cuda_version('{"cuda": 1}') is None
    assert cpu_name("processor\t: 0\nBogoMIPS\t: 108.00\n") == ""


def test_lines_before_the_power_mode_do_not_matter() -> None:
    assert parse_power_mode("NVPM WARN: fan mode is not set!\nNV Power Mode: MODE_30W\n2\n") == ("MODE_30W", 2)
