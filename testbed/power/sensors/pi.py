"""Raspberry Pi 5: rails measured by the power management IC (PMIC), read with `vcgencmd pmic_read_adc`.

`get_throttled` returns bits, 0 to 3 for the current state and 16 to 19 for events since boot (Raspberry Pi
documentation, "vcgencmd"). Currents (`NAME_A current(i)=0.5A`) and voltages (`NAME_V volt(j)=3.3V`) are matched by
name, not number. Loads that bypass the PMIC, such as USB devices, are not measured. Lines that cannot be parsed, and
currents without a voltage, are reported in `total` and in a warning: their power is missing from every reading.
"""

from __future__ import annotations

import functools
import logging
import re
import shutil
import subprocess
import time
from typing import NamedTuple

from testbed.errors import SensorError
from testbed.power.reading import Reading, joined
from testbed.power.sensors.rails import total_w
from testbed.power.sensors.thermal import Thermal

LOG = logging.getLogger(__name__)
VALUE = re.compile(r"(\w+)_([AV]) (?:current|volt)\(\d+\)=(-?\d+(?:\.\d+)?)([AV])")
NOW = {0: "under-voltage", 1: "frequency-capped", 2: "throttled", 3: "thermal"}
"""Bits of `get_throttled` for the current state."""
TIMEOUT_S = 5.0
TRIES = 3
"""Maximum number of reads to find all rails when the source is opened."""
MOST_SAID = 3
"""Maximum number of unreadable lines quoted in a message."""


class Pmic(NamedTuple):
    """Parsed output of `pmic_read_adc`."""

    rails: dict[str, float]
    """[W]"""
    unread: tuple[str, ...]
    """Lines that could not be parsed, and currents without a voltage."""


def parse_pmic(text: str) -> Pmic:
    """Parse power by rail; voltages without a current (`EXT5V`, `BATT`) are not rails.

    Raises:
        SensorError: no rail with both current and voltage.
    """
    values: dict[str, dict[str, float]] = {"A": {}, "V": {}}
    unread = []
    for line in (line.strip() for line in text.splitlines()):
        match = VALUE.fullmatch(line)
        if match is not None and match[2] == match[4]:
            values[match[2]][match[1]] = float(match[3])
        elif line:
            unread.append(line[:80])
    volts = values["V"]
    rails = {name: amperes * volts[name] for name, amperes in values["A"].items() if name in volts}
    unread += [f"{name}_A, which has no voltage" for name in values["A"] if name not in volts]
    if not rails:
        first_line = text.strip().splitlines()[0][:80] if text.strip() else "nothing"
        raise SensorError(f"vcgencmd pmic_read_adc names no rail: {first_line!r}; this needs a Raspberry Pi 5")
    return Pmic(rails, tuple(unread))


def parse_throttled(text: str) -> str:
    """Parse the current reasons for throttling, in the format of `Reading.throttled`.

    Raises:
        SensorError: no `throttled=0x…` in the output.
    """
    match = re.fullmatch(r"throttled=0x([0-9a-fA-F]{1,8})", text.strip())
    if match is None:
        raise SensorError(f"vcgencmd get_throttled says {text.strip()[:80]!r}, not throttled=0x…")
    bits = int(match[1], 16)
    return joined(reason for bit, reason in NOW.items() if bits >> bit & 1)


class RaspberryPi:
    """Power source that runs vcgencmd twice per reading, which takes about 10 ms of CPU time.

    Args:
        program: path or name of vcgencmd.

    Raises:
        SensorError: vcgencmd is missing or reports no rails.
    """

    name = "pi"
    period_s = 0.2
    mean = False

    def __init__(self, program: str = "vcgencmd") -> None:
        found = shutil.which(program)
        if found is None:
            raise SensorError("no vcgencmd: this is no Raspberry Pi, or raspi-utils is not installed")
        self._program, self._thermal = found, Thermal()
        first = self._first()
        parse_throttled(self._ask("get_throttled"))
        self._whole = tuple(first.rails)
        self.total = f"sum of the PMIC's {len(first.rails)} rails, USB devices left out"
        if first.unread:
            self.total += f"; lines that could not be read: {len(first.unread)}"
            _warn(first.unread)

    def read(self) -> Reading:
        """See `PowerSource`; the time is the midpoint of the reading."""
        begin_s = time.perf_counter()
        found = parse_pmic(self._ask("pmic_read_adc"))
        middle_s = (begin_s + time.perf_counter()) / 2
        try:
            power_w = total_w(found.rails, self._whole)
        except SensorError as exc:
            raise SensorError(f"vcgencmd pmic_read_adc: {exc}{_listed(found.unread, ': ')}") from exc
        throttled = parse_throttled(self._ask("get_throttled"))
        return Reading(middle_s, found.rails, power_w, self._thermal.read()[0], throttled)

    def close(self) -> None:
        """Nothing to release."""

    def _first(self) -> Pmic:
        """The most complete of a few reads, since a line may be garbled once, or always."""
        answers = []
        for _ in range(TRIES):
            answers.append(parse_pmic(self._ask("pmic_read_adc")))
            if not answers[-1].unread:
                break
        return max(answers, key=lambda answer: len(answer.rails))

    def _ask(self, command: str) -> str:
        try:
            done = subprocess.run(
                [self._program, command],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise SensorError(f"vcgencmd {command} did not run: {exc}") from exc
        if done.returncode:
            raise SensorError(f"vcgencmd {command} failed: {(done.stderr or done.stdout).strip()[:80]}")
        return done.stdout


@functools.cache
def _warn(unread: tuple[str, ...]) -> None:
    """Warn once about power that is missing from the readings."""
    LOG.warning("vcgencmd pmic_read_adc: power does not include these unreadable lines: %s", _listed(unread))


def _listed(lines: tuple[str, ...], before: str = "") -> str:
    """The first few lines in quotes; empty without lines."""
    if not lines:
        return ""
    more = f" and {len(lines) - MOST_SAID} more" if len(lines) > MOST_SAID else ""
    return before + ", ".join(map(repr, lines[:MOST_SAID])) + more
