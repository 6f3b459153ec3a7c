"""Power sensors of each board, on recorded output."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import SensorError
from testbed.power.sensors import nvml, rapl
from testbed.power.sensors.jetson import Jetson
from testbed.power.sensors.nvml import Nvml
from testbed.power.sensors.pi import RaspberryPi, parse_pmic, parse_throttled
from testbed.power.sensors.rapl import Rapl, domains, joules
from testbed.power.sensors.tegrastats import Tegrastats, looks_like, parse, readings
from testbed.power.sensors.thermal import Thermal
from tests.power import recorded
from tests.support.refusals import refuse

# ---------------------------------------------------------------- Jetson


def test_an_orin_nx_by_its_input_rail(tmp_path: Path) -> None:
    reading = Jetson(recorded.orin_nx(tmp_path)).read()
    assert reading.rails == pytest.approx({"VDD_IN": 7.524, "VDD_CPU_GPU_CV": 2.0032, "VDD_SOC": 1.252})
    assert reading.total_w == pytest.approx(7.524)  # which feeds the others
    assert reading.temp_c == pytest.approx(50.031)
    assert reading.throttled == ""


def test_an_agx_orin_by_three_rails(tmp_path: Path) -> None:
    source = Jetson(recorded.agx_orin(tmp_path))
    assert source.total == "VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0"
    reading = source.read()
    assert set(reading.rails) == {"VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"}
    assert reading.total_w == pytest.approx(3.92 + 1.96 + 4.5)
    assert (reading.temp_c, reading.throttled) == (None, None)  # no such information


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("sys/class/hwmon/hwmon3/oc1_event_cnt", 8, "under-voltage"),
        ("sys/class/hwmon/hwmon3/oc3_event_cnt", 9, "over-current"),
        ("sys/class/thermal/cooling_device1/cur_state", 1, "thermal"),
        ("sys/class/thermal/thermal_zone0/temp", 99_000, "thermal"),
        ("sys/class/thermal/thermal_zone0/temp", 98_999, ""),
        ("sys/class/thermal/cooling_device0/cur_state", 4, ""),  # a fan slows nothing down
    ],
)
def test_what_slows_a_jetson_down_is_noticed(path: str, value: int, reason: str, tmp_path: Path) -> None:
    source = Jetson(recorded.orin_nx(tmp_path))
    assert source.read().throttled == ""
    recorded.write(tmp_path, path, value)
    assert source.read().throttled == reason


def test_an_event_counts_once(tmp_path: Path) -> None:
    source = Jetson(recorded.orin_nx(tmp_path))
    for count, reason in ((8, "over-current"), (8, ""), (12, "over-current")):
        recorded.write(tmp_path, "sys/class/hwmon/hwmon3/oc2_event_cnt", count)
        assert source.read().throttled == reason


@pytest.mark.parametrize("text", ["", "n/a", "5.0", "0x1F4"])
def test_invalid_sensor_output_fails_that_reading_only(text: str, tmp_path: Path) -> None:
    source = Jetson(recorded.orin_nx(tmp_path))
    recorded.write(tmp_path, "sys/class/hwmon/hwmon1/curr1_input", text)
    refuse(source.read, SensorError, "curr1_input holds no whole number")
    recorded.write(tmp_path, "sys/class/hwmon/hwmon1/curr1_input", 1000)
    assert source.read().total_w == pytest.approx(5.016)


def test_a_machine_without_ina3221_is_no_jetson(tmp_path: Path) -> None:
    recorded.write(tmp_path, "sys/class/hwmon/hwmon0/name", "k10temp")
    refuse(lambda: Jetson(tmp_path), SensorError, "no INA3221")


# ---------------------------------------------------------------- tegrastats


def test_a_line_of_an_orin_nano() -> None:
    line = parse(recorded.TEGRASTATS_ORIN_NANO)
    assert line is not None
    assert line.rails == {"VDD_IN": 12.479, "VDD_CPU_GPU_CV": 4.667, "VDD_SOC": 2.817}
    assert line.temp_c == 53.968
    assert line.stamp_s == time.mktime((2024, 11, 15, 8, 38, 9, 0, 0, -1))


@pytest.mark.parametrize(
    ("line", "rails"),
    [
        ("POM_5V_IN 4096/3500 POM_5V_GPU 1000/900 GPU@-256C", {"POM_5V_IN": 4.096, "POM_5V_GPU": 1.0}),  # a Nano
        ("RAM 4300/30698MB GR3D_FREQ 45% tj@52.468C VDD_GPU_SOC 2171mW", {"VDD_GPU_SOC": 2.171}),
        ("RAM 4300/30698MB SWAP 1/2MB", None),
        ("VDD_IN 12479mW/", None),
        ("VDD_IN -5mW/3mW", None),
        ("VDD_IN 99999999999999mW/1mW", None),
        ("", None),
        ("\x00\x00", None),
    ],
)
def test_lines_of_other_boards_and_broken_ones(line: str, rails: dict[str, float] | None) -> None:
    found = parse(line)
    assert (None if found is None else found.rails) == rails


def test_a_zone_that_is_off_is_not_the_hottest() -> None:
    line = parse("cv0@-256C cpu@41.5C VDD_IN 1mW/1mW")
    assert line is not None
    assert line.temp_c == 41.5


def test_lines_of_one_second_lie_evenly_in_it() -> None:
    later = recorded.TEGRASTATS_ORIN_NANO.replace("08:38:09", "08:38:10")
    found = list(readings([recorded.TEGRASTATS_ORIN_NANO] * 4 + ["broken"] + [later] * 2))
    times_s = [reading.time_s for reading in found if reading is not None]
    assert [t - times_s[0] for t in times_s] == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1.5])
    assert found[4] is None
    assert looks_like(recorded.TEGRASTATS_ORIN_NANO) and not looks_like("time_s,VDD_IN_w\n0,1\n")


@given(st.text(max_size=200))
def test_no_line_breaks_the_parser(line: str) -> None:
    found = parse(line)
    assert found is None or all(power_w >= 0 for power_w in found.rails.values())


def test_the_program_is_read_as_it_prints(tmp_path: Path) -> None:
    line = recorded.TEGRASTATS_ORIN_NANO
    program = script(
        tmp_path / "tegrastats", f'echo "{line}"; echo garbage; echo "{line}"; echo "{line}"; exec sleep 60'
    )
    source = Tegrastats(program)
    try:
        assert source.total == "VDD_IN"
        refuse(source.read, SensorError, "no rail")
        first, second = source.read(), source.read()
        assert first.total_w == second.total_w == 12.479
        assert second.time_s > first.time_s
    finally:
        source.close()
        source.close()


def test_a_line_without_the_input_rail_is_no_reading_of_the_whole(tmp_path: Path) -> None:
    line = recorded.TEGRASTATS_ORIN_NANO
    short = line.replace("VDD_IN 12479mW/12479mW ", "")
    source = Tegrastats(script(tmp_path / "tegrastats", f'echo "{line}"; echo "{short}"; echo "{line}"; exec sleep 60'))
    try:
        refuse(source.read, SensorError, "no reading of VDD_IN")
        assert source.read().total_w == 12.479
    finally:
        source.close()
    found = list(readings([line, short, line]))
    assert [reading and reading.total_w for reading in found] == [12.479, None, 12.479]


def test_a_program_that_ends_is_an_error(tmp_path: Path) -> None:
    refuse(lambda: Tegrastats(script(tmp_path / "tegrastats", "exit 3")), SensorError, "tegrastats ended")
    refuse(lambda: Tegrastats(str(tmp_path / "none")), SensorError, "no Jetson")


# ---------------------------------------------------------------- Raspberry Pi


def test_the_rails_of_a_pi_5() -> None:
    found = parse_pmic(recorded.PMIC_PI5)
    assert len(found.rails) == 12 and found.unread == ()
    assert found.rails["VDD_CORE"] == pytest.approx(10.87674 * 0.8974594)
    assert found.rails["HDMI"] == pytest.approx(0.0136752 * 5.07056)
    assert not {"EXT5V", "BATT"} & set(found.rails)
    assert sum(found.rails.values()) == pytest.approx(10.799894, abs=1e-6)  # awk over the same two columns


def test_currents_without_voltages_are_no_power() -> None:
    refuse(lambda: parse_pmic(recorded.PMIC_PI5_EARLY), SensorError, "names no rail")
    refuse(lambda: parse_pmic('error=2 error_msg="Invalid arguments"'), SensorError, "names no rail", "error=2")
    refuse(lambda: parse_pmic(""), SensorError, "nothing")


def test_unreadable_lines_are_reported() -> None:
    extra = ("VDD_CORE_A current(7)=nanA", "HDMI_A current(22)=1V", "what")
    broken = recorded.PMIC_PI5 + "\n".join(extra)
    assert parse_pmic(broken) == parse_pmic(recorded.PMIC_PI5)._replace(unread=extra)
    alone = parse_pmic(recorded.PMIC_PI5.replace("VDD_CORE_V", "VDD_CORE_X"))
    assert "VDD_CORE" not in alone.rails and len(alone.unread) == 2
    assert "VDD_CORE_A, which has no voltage" in alone.unread


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("throttled=0x0", ""),
        ("throttled=0x50000\n", ""),  # events since boot
        ("throttled=0x50005", "throttled+under-voltage"),
        ("throttled=0xe0008", "thermal"),
        ("throttled=0xF000F", "frequency-capped+thermal+throttled+under-voltage"),
    ],
)
def test_bits_of_get_throttled(text: str, reasons: str) -> None:
    assert parse_throttled(text) == reasons


@pytest.mark.parametrize(
    "text", ["", "throttled=", "throttled=0xZZ", "VCHI initialization failed", "throttled=0x1 0x2"]
)
def test_other_answers_are_refused(text: str) -> None:
    refuse(lambda: parse_throttled(text), SensorError, "get_throttled")


def test_vcgencmd_is_run(tmp_path: Path) -> None:
    (tmp_path / "adc").write_text(recorded.PMIC_PI5)
    body = f'case "$1" in pmic_read_adc) cat {tmp_path}/adc ;; get_throttled) echo throttled=0x4 ;; *) exit 9 ;; esac'
    source = RaspberryPi(script(tmp_path / "vcgencmd", body))
    reading = source.read()
    assert reading.total_w == pytest.approx(sum(parse_pmic(recorded.PMIC_PI5).rails.values()))
    assert (reading.throttled, source.total[:10]) == ("throttled", "sum of the")
    script(tmp_path / "vcgencmd", "echo no access >&2; exit 255")
    refuse(source.read, SensorError, "failed: no access")
    refuse(lambda: RaspberryPi(str(tmp_path / "none")), SensorError, "no Raspberry Pi")


class Adc:
    """A vcgencmd whose `pmic_read_adc` prints the answers in turn, the last one repeatedly."""

    def __init__(self, folder: Path, *answers: str) -> None:
        self.folder = folder
        for number, answer in enumerate(answers):
            (folder / f"adc{number}").write_text(answer)
        count = f"n=$(cat {folder}/n 2>/dev/null || echo 0); echo $((n + 1)) >{folder}/n"
        adc = f"{count}; [ -e {folder}/adc$n ] || n={len(answers) - 1}; cat {folder}/adc$n"
        body = f'case "$1" in pmic_read_adc) {adc} ;; get_throttled) echo throttled=0x0 ;; esac'
        self.program = script(folder / "vcgencmd", body)


CORE = "VDD_CORE_A current(7)=10.87674000A"
BROKEN = recorded.PMIC_PI5.replace(CORE, "VDD_CORE_A current(7)=nanA")
ALL_W = sum(parse_pmic(recorded.PMIC_PI5).rails.values())


def test_a_line_that_is_always_unreadable_is_reported_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = f"VDD_CORE_A current(7)={tmp_path.name}A"  # unique, since a warning is logged once per process
    broken = recorded.PMIC_PI5.replace(CORE, line)
    source = RaspberryPi(Adc(tmp_path, broken).program)
    assert "11 rails" in source.total and "lines that could not be read: 1" in source.total
    said = [record.message for record in caplog.records]
    assert len(said) == 1 and repr(line) in said[0]
    assert source.read().total_w == pytest.approx(ALL_W - 10.87674 * 0.8974594)
    assert RaspberryPi(Adc(tmp_path, broken).program).total == source.total
    assert len(caplog.records) == 1  # once


def test_a_line_that_is_garbled_once_fails_that_reading_only(tmp_path: Path) -> None:
    source = RaspberryPi(Adc(tmp_path, BROKEN, recorded.PMIC_PI5, BROKEN, recorded.PMIC_PI5).program)
    assert source.total == "sum of the PMIC's 12 rails, USB devices left out"  # the second read was complete
    refuse(source.read, SensorError, "no reading of VDD_CORE", "nanA")
    assert source.read().total_w == pytest.approx(ALL_W)


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


# ---------------------------------------------------------------- RAPL

ZONES = {
    "intel-rapl:0": ("package-0", 1_000_000),
    "intel-rapl:0:0": ("core", 400_000),
    "intel-rapl:0:1": ("dram", 50_000),
    "intel-rapl:1": ("package-1", 2_000_000),
}


def advance(root: Path, by_uj: int, **clock: Any) -> None:
    for folder in ZONES:
        path = root / "sys/class/powercap" / folder / "energy_uj"
        path.write_text(str(int(path.read_text()) + by_uj))


def test_power_is_the_mean_since_the_reading_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([10.0, 10.0, 12.0, 12.0, 12.5, 12.5])
    monkeypatch.setattr(rapl.time, "perf_counter", lambda: next(ticks))
    source = Rapl(recorded.rapl(tmp_path, ZONES))
    assert source.total == "package-0 + package-1 + package-0/dram"  # cores are part of their package
    advance(tmp_path, 6_000_000)
    reading = source.read()
    assert reading.time_s == 12.0
    assert reading.rails == pytest.approx(
        {"package-0": 3.0, "package-0/core": 3.0, "package-0/dram": 3.0, "package-1": 3.0}
    )
    assert reading.total_w == pytest.approx(9.0)
    advance(tmp_path, 500_000)
    assert source.read().total_w == pytest.approx(3.0)


def test_a_counter_wraps_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.0, 1.0, 1.0])
    monkeypatch.setattr(rapl.time, "perf_counter", lambda: next(ticks))
    source = Rapl(recorded.rapl(tmp_path, {"intel-rapl:0": ("package-0", 999_990)}, range_uj=1_000_000))
    recorded.write(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", 2_999)
    assert source.read().total_w == pytest.approx((2_999 + 1_000_001 - 999_990) / 1e6)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_joules_allow_for_one_wrap_around(before: int, used: int) -> None:
    range_uj = 10**6
    assert joules(before, (before + used) % (range_uj + 1), range_uj) == pytest.approx(used / 1e6)


def test_a_platform_counter_is_the_whole(tmp_path: Path) -> None:
    zones = {"intel-rapl:0": ("package-0", 1), "intel-rapl:1": ("psys", 1)}
    assert Rapl(recorded.rapl(tmp_path, zones)).total == "psys"


def test_too_soon_and_unreadable_are_errors(tmp_path: Path) -> None:
    source = Rapl(recorded.rapl(tmp_path, ZONES))
    refuse(lambda: [source.read() for _ in range(2)], SensorError, "counters need")
    (tmp_path / "sys/class/powercap/intel-rapl:1/energy_uj").unlink()
    time.sleep(0.002)
    refuse(source.read, SensorError, "cannot read", "intel-rapl:1")
    empty = tmp_path / "empty"
    assert domains(empty) == []
    refuse(lambda: Rapl(empty), SensorError, "no RAPL")


def test_counters_for_root_alone_say_so(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    recorded.rapl(tmp_path, ZONES)
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").chmod(0)
    refuse(lambda: Rapl(tmp_path), SensorError, "Permission denied")


def test_throttling_of_x86_is_counted(tmp_path: Path) -> None:
    counter = "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
    recorded.write(tmp_path, counter, 5)
    thermal = Thermal(tmp_path)
    assert thermal.read() == (None, "")
    recorded.write(tmp_path, counter, 6)
    assert thermal.read() == (None, "thermal")
    assert thermal.read() == (None, "")


def test_a_machine_without_throttling_information(tmp_path: Path) -> None:
    assert Thermal(tmp_path).read() == (None, None)
    recorded.zone(tmp_path, 0, "acpitz", 16_800, {"critical": 20_000})
    assert Thermal(tmp_path).read() == (16.8, None)


# ---------------------------------------------------------------- NVML


class Library:
    """The NVML functions in use, for two GPUs."""

    class NVMLError(Exception):
        """Not supported."""

    def __init__(self, counts: bool = True) -> None:
        self.counts, self.energy_mj, self.reasons, self.shut = counts, [5_000, 9_000], [0, 0], 0

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        self.shut += 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: int) -> int:
        if not self.counts:
            raise self.NVMLError("Not Supported")
        return self.energy_mj[gpu]

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        return [70_000, 30_500][gpu]

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:
        assert sensor == 0
        return [61, 48][gpu]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: int) -> int:
        return self.reasons[gpu]


def test_gpus_that_count_their_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([1.0, 3.0])
    monkeypatch.setattr(nvml.time, "perf_counter", lambda: next(ticks))
    library = Library()
    source = Nvml(library)
    library.energy_mj, library.reasons = [105_000, 59_000], [0x1 | 0x4, 0x40]
    reading = source.read()
    assert source.mean
    assert reading.rails == pytest.approx({"gpu0": 50.0, "gpu1": 25.0})
    assert (reading.total_w, reading.temp_c, reading.throttled) == (pytest.approx(75.0), 61.0, "power-cap+thermal")
    source.close()
    assert library.shut == 1


def test_older_gpus_say_their_power() -> None:
    source = Nvml(Library(counts=False))
    reading = source.read()
    assert not source.mean
    assert (reading.total_w, reading.throttled) == (pytest.approx(100.5), "")


def test_a_gpu_that_fails_is_an_error_of_that_reading() -> None:
    library = Library(counts=False)
    source = Nvml(library)
    library.nvmlDeviceGetPowerUsage = library.nvmlDeviceGetTotalEnergyConsumption  # type: ignore[method-assign]
    refuse(source.read, SensorError, "NVML: Not Supported")
