"""Observes a BS process from outside: memory, open files, and its metrics."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.soak.seen import Sample


class Watch:
    """One BS process.

    Args:
        pid: of the process.
        metrics: the file to which it writes what it counts.
    """

    def __init__(self, pid: int, metrics: Path) -> None:
        self._pid, self._metrics = pid, metrics

    def sample(self, t_s: float) -> Sample:
        """Take a sample."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        rss_mb = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        counted = last_line(self._metrics)
        files = len(os.listdir(f"/proc/{self._pid}/fd"))
        return Sample(t_s, rss_mb, files, counted["sessions"], counted["waiting"])

    async def run(self, every_s: float, begun_s: float, keep: Callable[[Sample], None]) -> None:
        """Take samples until cancelled."""
        while True:
            keep(self.sample(time.monotonic() - begun_s))
            await asyncio.sleep(every_s)

    async def at_rest(self, t_s: float, files: int) -> Sample:
        """Sample once sessions have expired and few enough files are open, or after a timeout."""
        for _ in range(100):
            sample = self.sample(t_s)
            if not sample.sessions and sample.files <= files:
                break
            await asyncio.sleep(0.3)
        return sample


def last_line(path: Path) -> dict[str, Any]:
    """The BS's latest metrics."""
    if not path.exists() or not path.stat().st_size:
        return {"sessions": 0, "waiting": 0}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**16))
        found: dict[str, Any] = json.loads(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2])
    return found
