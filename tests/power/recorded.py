"""What boards say, as public sources have it; trees of sysfs as the kernel's documentation draws them.

- TEGRASTATS_ORIN_NANO: a line from the tests of github.com/henrygd/beszel (agent/gpu_test.go, TestParseJetsonData,
  "more valid data"), which do not name the board: by its cores, rails and memory an Orin Nano of 8 GB.
- PMIC_PI5: `vcgencmd pmic_read_adc` of a Raspberry Pi 5 under load, from github.com/jfikar/RPi5-power (README.md).
- PMIC_PI5_EARLY: the same of an early board, lines of what jeffgeerling.com shows of it (blog, 2023-10-04,
  "Overclocking and Underclocking the Raspberry Pi 5"): currents alone, then an ellipsis.
- Rails of `orin_nx` and `agx_orin`: the kernel's device trees arch/arm64/boot/dts/nvidia/tegra234-p3767.dtsi and
  tegra234-p3701.dtsi; names of files: Documentation/hwmon/ina3221.rst. Their numbers are made up.
- `rapl`: Documentation/power/powercap/powercap.rst. Its numbers are made up.
- `soctherm_oc` and its files: drivers/thermal/tegra234-oc-event.c of NVIDIA's linux-nv-oot. The counts are made up.
- Zones and cooling devices of `orin_nx`: Documentation/ABI/testing/sysfs-class-thermal; names as on Jetson Linux.
- Bits of get_throttled: Raspberry Pi documentation, "vcgencmd"; event reasons: NVML API reference.
"""

from __future__ import annotations

from pathlib import Path

TEGRASTATS_ORIN_NANO = (
    "11-15-2024 08:38:09 RAM 6185/7620MB (lfb 8x2MB) SWAP 851/3810MB (cached 1MB) "
    "CPU [15%@729,11%@729,14%@729,13%@729,11%@729,8%@729] EMC_FREQ 43%@2133 GR3D_FREQ 63%@[621] NVDEC off NVJPG off "
    "NVJPG1 off VIC off OFA off APE 200 cpu@53.968C soc2@52.437C soc0@50.75C gpu@53.343C tj@53.968C soc1@51.656C "
    "VDD_IN 12479mW/12479mW VDD_CPU_GPU_CV 4667mW/4667mW VDD_SOC 2817mW/2817mW"
)
PMIC_PI5 = """\
 3V7_WL_SW_A current(0)=0.00000000A
   3V3_SYS_A current(1)=0.06245952A
   1V8_SYS_A current(2)=0.16102850A
  DDR_VDD2_A current(3)=0.00780744A
  DDR_VDDQ_A current(4)=0.00000000A
   1V1_SYS_A current(5)=0.17566740A
    0V8_SW_A current(6)=0.32791250A
  VDD_CORE_A current(7)=10.87674000A
   3V3_DAC_A current(17)=0.00036630A
   3V3_ADC_A current(18)=0.00042735A
   0V8_AON_A current(16)=0.00579975A
      HDMI_A current(22)=0.01367520A
 3V7_WL_SW_V volt(8)=3.79999600V
   3V3_SYS_V volt(9)=3.30632200V
   1V8_SYS_V volt(10)=1.79828900V
  DDR_VDD2_V volt(11)=1.10292900V
  DDR_VDDQ_V volt(12)=0.60476130V
   1V1_SYS_V volt(13)=1.10439400V
    0V8_SW_V volt(14)=0.80256330V
  VDD_CORE_V volt(15)=0.89745940V
   3V3_DAC_V volt(20)=3.30494200V
   3V3_ADC_V volt(21)=3.30219400V
   0V8_AON_V volt(19)=0.79736190V
      HDMI_V volt(23)=5.07056000V
     EXT5V_V volt(24)=5.06788000V
      BATT_V volt(25)=3.01110800V
"""
PMIC_PI5_EARLY = """\
 3V7_WL_SW_A current(0)=0.00780744A
   3V3_SYS_A current(1)=0.12199130A
  VDD_CORE_A current(7)=0.75012000A
...
"""


def write(root: Path, path: str, text: object) -> None:
    """Write a file of the tree."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def ina3221(root: Path, hwmon: str, rails: dict[str, tuple[int, int]]) -> None:
    """An INA3221 with rails in mV and mA; `DISABLED`: a disabled channel."""
    folder = f"sys/class/hwmon/{hwmon}"
    write(root, f"{folder}/name", "ina3221")
    for i, (label, (voltage_mv, current_ma)) in enumerate(rails.items(), 1):
        write(root, f"{folder}/in{i}_label", label)
        write(root, f"{folder}/in{i}_enable", int(label != "DISABLED"))
        write(root, f"{folder}/in{i}_input", voltage_mv)
        write(root, f"{folder}/curr{i}_input", current_ma)
    write(root, f"{folder}/in7_label", "sum of shunt voltages")
    write(root, f"{folder}/in7_input", 1234)


def orin_nx(root: Path) -> Path:
    """A Jetson Orin NX with zones below their limits and an enabled over-current counter."""
    write(root, "sys/class/hwmon/hwmon0/name", "pwmfan")
    ina3221(root, "hwmon1", {"VDD_IN": (5016, 1500), "VDD_CPU_GPU_CV": (5008, 400), "VDD_SOC": (5008, 250)})
    write(root, "sys/class/hwmon/hwmon3/name", "soctherm_oc")
    for number in (1, 2, 3):
        write(root, f"sys/class/hwmon/hwmon3/oc{number}_event_cnt", 7)
        write(root, f"sys/class/hwmon/hwmon3/oc{number}_throt_en", 1)
    zone(root, 0, "cpu-thermal", 50_031, {"passive": 99_000, "critical": 104_500})
    zone(root, 1, "gpu-thermal", 48_218, {"passive": 99_000})
    write(root, "sys/class/thermal/thermal_zone2/type", "cv0-thermal")  # without a temperature: it is switched off
    write(root, "sys/class/thermal/cooling_device0/type", "pwm-fan")
    write(root, "sys/class/thermal/cooling_device0/cur_state", 3)
    write(root, "sys/class/thermal/cooling_device1/type", "cpu-throttle-alert")
    write(root, "sys/class/thermal/cooling_device1/cur_state", 0)
    return root


def agx_orin(root: Path) -> Path:
    """A Jetson AGX Orin: two sensors, no rail for the whole module."""
    ina3221(root, "hwmon3", {"VDD_GPU_SOC": (19_600, 200), "VDD_CPU_CV": (19_600, 100), "VIN_SYS_5V0": (5000, 900)})
    ina3221(root, "hwmon4", {"DISABLED": (0, 0), "VDDQ_VDD2_1V8AO": (5000, 100)})
    return root


def zone(root: Path, number: int, kind: str, temp_mc: int, trips_mc: dict[str, int]) -> None:
    """A thermal zone, in millidegrees."""
    folder = f"sys/class/thermal/thermal_zone{number}"
    write(root, f"{folder}/type", kind)
    write(root, f"{folder}/temp", temp_mc)
    for i, (trip, at_mc) in enumerate(trips_mc.items()):
        write(root, f"{folder}/trip_point_{i}_type", trip)
        write(root, f"{folder}/trip_point_{i}_temp", at_mc)


def rapl(root: Path, zones: dict[str, tuple[str, int]], range_uj: int = 262_143_328_850) -> Path:
    """Counters by their folder under powercap: name, and energy in µJ."""
    for folder, (name, energy_uj) in zones.items():
        write(root, f"sys/class/powercap/{folder}/name", name)
        write(root, f"sys/class/powercap/{folder}/energy_uj", energy_uj)
        write(root, f"sys/class/powercap/{folder}/max_energy_range_uj", range_uj)
    return root
