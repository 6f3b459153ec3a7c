"""The live view of a base station process: a web server in a thread of its own, beside the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.bs.monitor_source import Station
from testbed.config import ServeConfig
from testbed.errors import BadInput
from testbed.listening import key_in, listening, url_of

if TYPE_CHECKING:
    import uvicorn

    from testbed.bs.monitor_feed import Feed

FLAG = "--monitor-token-file"
CONNECTIONS = 128
"""Served at once; further ones are answered 503."""
UNREAD_MS = 15_000
"""After which Linux cuts a connection whose client takes nothing of what is sent."""
GRACE_S = 2
"""For answers under way when the live view is stopped."""
STOP_S = 10.0


@dataclass(frozen=True)
class Monitor:
    """A live view that answers, whether or not the base station serves yet."""

    station: Station
    url: str


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
    """Refuse options of a live view that there is not.

    Raises:
        BadInput: an address that is none, or the options of a live view without one.
    """
    if config.monitor is not None:
        monitor_address(config.monitor)
        return
    for name, value in (("monitor-token-file", config.monitor_token_file), ("monitor-text", config.monitor_text)):
        if value:
            raise BadInput(f"--{name} goes with --monitor HOST:PORT")


@contextlib.contextmanager
def monitored(config: ServeConfig) -> Iterator[Monitor | None]:
    """The live view that a configuration asks for, until the block ends; None where it asks for none.

    Raises:
        BadInput: an address or key that cannot be used, or a BS that is installed without a web server.
    """
    if config.monitor is None:
        yield None
        return
    try:
        from testbed.bs.monitor_app import make_app
        from testbed.bs.monitor_feed import Feed
    except ImportError as exc:
        raise BadInput(f"the live view needs {exc.name}: make setup EXTRAS=bs") from exc
    token = key_in(config.monitor_token_file)
    host, port = monitor_address(config.monitor)
    with listening(host, port, guarded=token is not None, flag=FLAG) as listener:
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
        station = Station()
        feed = Feed(station)
        with _Web(make_app(station, feed, token, host), feed, listener):
            yield Monitor(station, url_of(listener))


class _Web:
    """The thread of the web server; a context manager."""

    def __init__(self, app: object, feed: Feed, listener: socket.socket) -> None:
        import uvicorn

        settings = uvicorn.Config(
            app,  # type: ignore[arg-type]
            http="h11",  # it bounds headers, which httptools does not
            log_config=None, log_level="critical", access_log=False, lifespan="off", ws="none", server_header=False,
            limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=GRACE_S,
        )  # fmt: skip
        self._server: uvicorn.Server = uvicorn.Server(settings)
        self._feed, self._listener = feed, listener
        self._thread = threading.Thread(target=self._run, name="live view", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_S)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        working = [asyncio.create_task(self._feed.run()), asyncio.create_task(self._let_go())]
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    async def _let_go(self) -> None:
        """Once the server is to stop, end the streams that it would wait for."""
        while not self._server.should_exit:
            await asyncio.sleep(0.1)
        self._feed.close()
