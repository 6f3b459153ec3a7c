"""The live view of a base station process: a web server in a process of its own, which ends with this one.

It listens before the engine is loaded, and asks the server's event loop only while there are viewers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import logging
import os
import socket
import subprocess
from collections.abc import Iterator

from testbed.bs.monitor.source import Source, answer_all
from testbed.bs.monitor.wire import MonitorClosing, MonitorSetup, frame
from testbed.clock import within
from testbed.config import ServeConfig
from testbed.errors import BadInput
from testbed.process.children import module_command
from testbed.process.interrupts import NUMBERS, blocked
from testbed.tasks import Background, cancel
from testbed.web.listening import key_in, listening, url_of

LOG = logging.getLogger(__name__)
FLAG = "--monitor-token-file"
WEB = "testbed.bs.monitor.web"
NEEDS = ("prometheus_client", "starlette", "tokenizers", "uvicorn")
LAST_S = 1.0
"""Time for the last message to the live view's process."""
STOP_S = 2.0
"""Time for its process to end by itself; it holds nothing that could be lost."""


class Monitor:
    """A running live view, whether or not the base station serves yet.

    Args:
        link: socket to its process; owned by this object.
    """

    def __init__(self, link: socket.socket, url: str) -> None:
        self.url = url
        self._link = link
        self._answering: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def attach(self, source: Source, background: Background) -> None:
        """Announce that the base station serves; questions are answered on the running event loop."""
        reader, self._writer = await asyncio.open_connection(sock=self._link.dup())
        self._writer.transport.set_write_buffer_limits(0)  # to drain is to have all written
        self._writer.write(frame(source.serving))
        answering = functools.partial(answer_all, source, reader, self._writer)
        self._answering = background.start("live view", answering, endless=False)

    async def detach(self) -> None:
        """Announce that the base station serves no more; the live view stays up until `close`."""
        if self._answering is None or self._writer is None:
            return
        await cancel(self._answering)
        with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
            self._writer.write(frame(MonitorClosing()))
            await within(LAST_S, self._writer.drain())
        self._writer.transport.abort()

    def close(self) -> None:
        """End the live view: its process notices that the socket is closed."""
        self._link.close()


def monitor_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPv6]:PORT` or `PORT`; a port alone is on loopback.

    Raises:
        BadInput: neither.
    """
    host, colon, port = text.rpartition(":")
    host = host.strip()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadInput(f"{text}: write an IPv6 address in brackets, as in [::1]:9100")
    if not port.isdecimal() or not port.isascii() or int(port) >= 2**16:
        raise BadInput(f"monitor takes HOST:PORT or PORT, such as 127.0.0.1:9100, not {text!r}")
    return (host if colon else "127.0.0.1"), int(port)


def check_monitor(config: ServeConfig) -> None:
    """Check the options of the live view.

    Raises:
        BadInput: an invalid address, or options of a live view without an address.
    """
    if config.monitor is not None:
        monitor_address(config.monitor)
        return
    for name, value in (("monitor-token-file", config.monitor_token_file), ("monitor-text", config.monitor_text)):
        if value:
            raise BadInput(f"--{name} goes with --monitor HOST:PORT")


@contextlib.contextmanager
def monitored(config: ServeConfig) -> Iterator[Monitor | None]:
    """Run the configured live view within the block; None: there is none.

    Raises:
        BadInput: an address or key that cannot be used, or a BS that is installed without a web server.
    """
    if config.monitor is None:
        yield None
        return
    lacking = next((name for name in NEEDS if importlib.util.find_spec(name) is None), None)
    if lacking is not None:
        raise BadInput(f"the live view needs {lacking}: make setup EXTRAS=bs")
    token = key_in(config.monitor_token_file)
    host, port = monitor_address(config.monitor)
    ours, theirs = socket.socketpair()
    with contextlib.closing(ours), contextlib.closing(theirs):
        with listening(host, port, guarded=token is not None, flag=FLAG) as listener:
            process, monitor = _start(theirs, listener), Monitor(ours, url_of(listener))
        theirs.close()
        with contextlib.suppress(ConnectionError):  # the process has died, which is noticed later
            ours.sendall(frame(MonitorSetup(host, token)))
        try:
            yield monitor
        finally:
            monitor.close()
            _end(process)


def _start(link: socket.socket, listener: socket.socket) -> subprocess.Popen[bytes]:
    """Start the live view's process with interrupting signals blocked."""
    with blocked(*NUMBERS):
        return subprocess.Popen(
            module_command(WEB, str(os.getpid()), str(link.fileno()), str(listener.fileno())),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(link.fileno(), listener.fileno()),
        )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the process to end, then kill it."""
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
