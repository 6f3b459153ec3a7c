"""The controller's end of its socket to a base station."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.bs.control.messages import Decisions, Event, StationReport
from testbed.bs.monitor.wire import frame, receive
from testbed.errors import TestbedError


class ControlledStation:
    """A base station that hints what is decided here.

    Args:
        told: informed of its rounds and sessions.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, told: Callable[[Event], object]
    ) -> None:
        self._reader, self._writer, self._told = reader, writer, told
        self._last = StationReport([], 0, 0.0)

    @classmethod
    async def connect(cls, path: Path, told: Callable[[Event], object]) -> ControlledStation:
        """Connect to the base station that listens at `path`.

        Raises:
            TestbedError: none does.
        """
        try:
            return cls(*await asyncio.open_unix_connection(path), told)
        except OSError as exc:
            raise TestbedError(f"no base station listens at {path}: {exc.strerror or exc}") from exc

    def metrics(self) -> dict[str, Any]:
        """The latest counters, named as in `Metrics.snapshot`."""
        return {"passes": self._last.passes, "busy_s": self._last.busy_s}

    def decide(self, decisions: Decisions) -> None:
        """Send decisions."""
        self._writer.write(frame(decisions))

    async def run(self) -> None:
        """Receive reports until cancelled.

        Raises:
            TestbedError: the base station has ended the connection.
        """
        try:
            while True:
                self._last = await receive(self._reader, StationReport)
                for event in self._last.events:
                    self._told(event)
        except EOFError as exc:
            raise TestbedError("the base station has disconnected its controller") from exc

    def close(self) -> None:
        """End the connection."""
        self._writer.close()
