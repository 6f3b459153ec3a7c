"""Raspberry Pi 5: the rails that its power management chip measures, by `vcgencmd pmic_read_adc`.

Raspberry Pi documentation, "vcgencmd": `get_throttled` answers bits, 0 to 3 for what is the case now and 16 to 19 for
what has been since boot. Currents (`NAME_A current(i)=0.5A`) and voltages (`NAME_V volt(j)=3.3V`) belong together by
name, not by number. What is fed past the chip, USB devices among it, is on no rail. Lines that are neither, and
currents without a voltage, are told with `total` and in a warning: their power is missing from every reading.
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
"""Bits of `get_throttled` for what is the case now."""
TIMEOUT_S = 5.0
TRIES = 3
"""To be told all rails, when the source is opened."""
MOST_SAID = 3
"""Lines that are named of those that could not be read."""


class Pmic(NamedTuple):
    """What `pmic_read_adc` said."""

    rails: dict[str, float]
    """[W]"""
    unread: tuple[str, ...]
    """What could not be made power of: lines as they came, and currents that have no voltage."""


def parse_pmic(text: str) -> Pmic:
    """Power by rail; voltages without a current (`EXT5V`, `BATT`) are no rails.

    Raises:
        SensorError: not one rail with both.
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
        said = text.strip().splitlines()[0][:80] if text.strip() else "nothing"
        raise SensorError(f"vcgencmd pmic_read_adc names no rail: {said!r}; this needs a Raspberry Pi 5")
    return Pmic(rails, tuple(unread))


def parse_throttled(text: str) -> str:
    """Why the board runs slower than it could now, as `Reading.throttled` has it.

    Raises:
        SensorError: no `throttled=0x…`.
    """
    match = re.fullmatch(r"throttled=0x([0-9a-fA-F]{1,8})", text.strip())
    if match is None:
        raise SensorError(f"vcgencmd get_throttled says {text.strip()[:80]!r}, not throttled=0x…")
    bits = int(match[1], 16)
    return joined(reason for bit, reason in NOW.items() if bits >> bit & 1)


class RaspberryPi:
    """Runs vcgencmd twice for a reading: some 10 ms of a core.

    Args:
        program: vcgencmd.

    Raises:
        SensorError: no vcgencmd, or no rails.
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
        """See `PowerSource`; the time is that of the middle of the reading."""
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
        """Nothing is held."""

    def _first(self) -> Pmic:
        """The fullest of a few answers: a line may come broken once, or always."""
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
    """Say once what is missing from the power of this board."""
    LOG.warning("vcgencmd pmic_read_adc: power is without what these say: %s", _listed(unread))


def _listed(lines: tuple[str, ...], before: str = "") -> str:
    """Lines in quotes, the first few; nothing where there are none."""
    if not lines:
        return ""
    more = f" and {len(lines) - MOST_SAID} more" if len(lines) > MOST_SAID else ""
    return before + ", ".join(map(repr, lines[:MOST_SAID])) + more
