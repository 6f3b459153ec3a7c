"""NVIDIA tegrastats, as a power source (where sysfs has no INA3221, JetPack 4) and as a log format.

It prints a line per interval, with rails as `NAME 1234mW/1200mW` and temperatures as `name@45.5C`. The first number of
a rail is instantaneous, the second the mean since the start (Jetson Linux Developer Guide, "tegrastats Utility").
"""

from __future__ import annotations

import datetime
import os
import re
import select
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from testbed.errors import SensorError
from testbed.power.reading import Reading
from testbed.power.sensors.rails import total_w, whole

STAMP = re.compile(r"^(\d{2}-\d{2}-\d{4} \d{2}:\d{2}:\d{2}) ")
RAIL = re.compile(r"(?<!\S)([A-Z][A-Z0-9_]*) (\d{1,9})(?:mW)?/(\d{1,9})(?:mW)?(?!\S)")
RAIL_ALONE = re.compile(r"(?<!\S)([A-Z][A-Z0-9_]*) (\d{1,9})mW(?!\S)")
ZONE = re.compile(r"(?<!\S)(\w+)@(-?\d{1,3}(?:\.\d+)?)C(?!\S)")
OFF_C = -100.0
"""Zones that are switched off report lower temperatures (-256)."""
TIMEOUT_S = 5.0
"""Time without a line after which reading fails."""


class Tegrastats:
    """Power source that runs tegrastats and parses its output.

    Args:
        program: path or name of tegrastats.

    Raises:
        SensorError: the program is missing or prints no rails.
    """

    name = "tegrastats"
    period_s = 0.0
    """`read` blocks until the next line."""
    mean = False

    def __init__(self, program: str = "tegrastats", interval_ms: int = 100) -> None:
        found = shutil.which(program)
        if found is None:
            raise SensorError("no tegrastats: this is no Jetson")
        command = [found, "--interval", str(interval_ms)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._rest = b""
        try:
            self._whole = whole(self._parsed().rails)
            self.total = " + ".join(self._whole)
        except BaseException:
            self.close()
            raise

    def read(self) -> Reading:
        """See `PowerSource`; blocks until the next line."""
        found = self._parsed()
        return Reading(time.perf_counter(), found.rails, total_w(found.rails, self._whole), found.temp_c)

    def _parsed(self) -> TegrastatsLine:
        line = self._line()
        found = parse(line)
        if found is None:
            raise SensorError(f"tegrastats prints no rail: {line[:80]!r}")
        return found

    def close(self) -> None:
        """End the program; a second call has no effect."""
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        deadline_s = time.perf_counter() + TIMEOUT_S
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline_s - time.perf_counter()))
            block = os.read(pipe, 65536) if ready else b""
            if not block:
                raise SensorError("tegrastats ended" if ready else f"tegrastats printed nothing for {TIMEOUT_S:g} s")
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")


class TegrastatsLine(NamedTuple):
    """Parsed line of tegrastats."""

    stamp_s: float | None
    """Unix time in whole seconds, from the machine's local time; None without a time stamp (JetPack 4)."""
    rails: dict[str, float]
    """[W]"""
    temp_c: float | None
    """Temperature of the hottest zone."""


def parse(line: str) -> TegrastatsLine | None:
    """Parse a line; None if it has no rail."""
    line = line.strip()
    rails = {name: int(now) / 1e3 for name, now, _ in RAIL.findall(line)}
    rails |= {name: int(now) / 1e3 for name, now in RAIL_ALONE.findall(line)}
    if not rails:
        return None
    temps = [float(temp) for _, temp in ZONE.findall(line)]
    return TegrastatsLine(_stamp_s(line), rails, max((t for t in temps if t > OFF_C), default=None))


def looks_like(text: str) -> bool:
    """Whether a text is a tegrastats log."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return parse(first) is not None and "," not in first.split(" ")[0]


def readings(lines: Iterable[str]) -> Iterator[Reading | None]:
    """Readings of a log; None for lines that are not readings or lack a rail of the total.

    Times are Unix times if all lines have time stamps, with the lines of a second spread evenly over it. Otherwise they
    start at 0 with one second per line, the default interval of tegrastats.
    """
    parsed = [parse(line) for line in lines if line.strip()]
    kept = [line for line in parsed if line is not None]
    names = whole(sorted({name for line in kept for name in line.rails}))
    times = iter(_times_s(kept))
    for line in parsed:
        time_s = 0.0 if line is None else next(times)
        if line is None or not set(names) <= set(line.rails):
            yield None
        else:
            yield Reading(time_s, line.rails, total_w(line.rails, names), line.temp_c)


def _times_s(lines: list[TegrastatsLine]) -> list[float]:
    stamps = [line.stamp_s for line in lines if line.stamp_s is not None]
    if len(stamps) < len(lines):
        return [float(i) for i in range(len(lines))]
    counts, seen, times = Counter(stamps), Counter[float](), []
    for stamp in stamps:
        times.append(stamp + seen[stamp] / counts[stamp])
        seen[stamp] += 1
    return times


def _stamp_s(line: str) -> float | None:
    match = STAMP.match(line)
    if match is None:
        return None
    try:
        return datetime.datetime.strptime(match[1], "%m-%d-%Y %H:%M:%S").timestamp()
    except (ValueError, OverflowError):
        return None
