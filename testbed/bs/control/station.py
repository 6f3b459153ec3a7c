"""The base station's end of its controller's socket: a Unix socket that only its own user can open.

One controller at a time. Without one, nothing is hinted; a UE for which the base station decodes alone stays so until
its session ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from testbed.bs.control.hints import DecidedHints
from testbed.bs.control.messages import MOST_BYTES, Decisions, Event, StationReport
from testbed.bs.control.place import listening_at
from testbed.bs.monitor.wire import frame, receive
from testbed.config import ServeConfig
from testbed.errors import BadInput
from testbed.protocols import PROTOCOLS
from testbed.tasks import cancel

LOG = logging.getLogger(__name__)
MOST_UNREAD = 2**20
"""Bytes of reports that a controller may leave unread."""
WARNED_S = 60.0
"""Time between two warnings of the same kind: whoever connects again and again does not fill the log."""


class ControlSocket:
    """Serves a controller.

    Attributes:
        hints: what it decides.

    Args:
        listening: owned by this object.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.hints = DecidedHints(self._tell, lambda ue: self._knows(ue))
        self._events: list[Event] = []
        self._writer: asyncio.StreamWriter | None = None
        self._serving: asyncio.Task[Any] | None = None
        self._count: Callable[[], dict[str, Any]] = dict
        self._knows: Callable[[bytes], bool] = lambda ue: False
        self._warned_s: dict[str, float] = {}

    async def serve(self, count: Callable[[], dict[str, Any]], knows: Callable[[bytes], bool]) -> None:
        """Serve until cancelled.

        Args:
            count: counters of the base station.
            knows: whether a UE with this identity has a session.
        """
        self._count, self._knows = count, knows
        server = await asyncio.start_unix_server(self._serve, sock=self._listening.dup())
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            if self._serving is not None:
                await cancel(self._serving)

    def _tell(self, event: Event) -> None:
        if self._writer is None:
            return
        self._events.append(event)
        if len(self._events) == 1:
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        events, self._events = self._events, []
        if (writer := self._writer) is None:
            return
        found = self._count()
        writer.write(frame(StationReport(events, found["passes"], found["busy_s"])))
        if writer.transport.get_write_buffer_size() > MOST_UNREAD:
            self._warn("the controller was disconnected: %s", "it reads too slowly")
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._writer is not None:
            self._warn("a second controller was refused: %s", "one is connected")
            writer.close()
            return
        self._writer, self._serving = writer, asyncio.current_task()
        try:
            while True:
                self.hints.apply(_checked(await receive(reader, Decisions, MOST_BYTES)))
                await asyncio.sleep(0)  # messages that have arrived already are received without a pause
        except (asyncio.CancelledError, EOFError):  # this end, or the other one, has ended
            pass
        except (BadInput, msgspec.DecodeError) as exc:
            self._warn("the controller was disconnected: %s", exc)
        finally:
            self._writer, self._serving, self._events = None, None, []
            self.hints.forget()
            writer.close()

    def _warn(self, what: str, why: object) -> None:
        """Log a warning, unless one of its kind was logged within `WARNED_S`."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._warned_s.get(what, -math.inf) >= WARNED_S:
            self._warned_s[what] = now_s
            LOG.warning(what, why)


def _checked(decisions: Decisions) -> Decisions:
    """Decisions that can be hinted.

    Raises:
        BadInput: an unknown protocol.
    """
    for decided in decisions.ues.values():
        if decided.protocol and decided.protocol not in PROTOCOLS:
            raise BadInput(f"unknown protocol {decided.protocol!r}")
    return decisions


@contextlib.contextmanager
def controlled(config: ServeConfig) -> Iterator[ControlSocket | None]:
    """Listen for the controller within the block; None: there is none.

    Raises:
        BadInput: a path at which no socket can be, or a window controller beside this one.
    """
    if config.controller is None:
        yield None
        return
    if config.window_controller is not None:
        raise BadInput("--controller and --window-controller both decide windows: give one of them")
    with listening_at(config.controller) as listening:
        yield ControlSocket(listening)
