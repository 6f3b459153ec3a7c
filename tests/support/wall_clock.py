"""A wall clock that can jump, for child processes; their monotonic clocks are not affected."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("wall_clock.c")


class WallClock:
    """The wall clock of some processes.

    Attributes:
        environment: to start them with.
    """

    def __init__(self, folder: Path) -> None:
        self._file, library = folder / "wall-clock", folder / "wall_clock.so"
        self.set(0)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True, timeout=60)
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(self._file)}

    def set(self, ahead_s: int) -> None:
        """Offset from the host's clock."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(ahead_s.to_bytes(8, sys.byteorder, signed=True))


def wall_clock_available() -> str | None:
    """Why the clock cannot be changed here; None: it can."""
    if sys.platform != "linux":
        return "needs Linux"
    return None if shutil.which("cc") else "no C compiler (apt install gcc)"
