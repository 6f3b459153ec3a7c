"""The live view's process: a web server that asks the base station over a socket.

It is started by `process.py` and ends with the base station, however that ends. SIGINT and SIGTERM are blocked from its
start: a signal to all processes of a terminal or service is handled by the base station.

Run: python -m testbed.bs.monitor.web PARENT_PID SOCKET LISTENER; the latter two are file descriptors
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

import uvicorn

from testbed.bs.monitor.app import REQUESTS, make_app
from testbed.bs.monitor.client import MonitoredStation
from testbed.bs.monitor.feed import Feed
from testbed.bs.monitor.history import History
from testbed.bs.monitor.wire import MonitorSetup, receive
from testbed.process import logs
from testbed.process.heap import loaded_heap_frozen
from testbed.process.interrupts import as_worker
from testbed.tasks import beside
from testbed.web.server import BACKLOG, SPARE, BoundedHttp

NICE = 10
"""Below the base station and other drafting or verifying processes: on a busy machine it gets a tenth of a core."""
GRACE_S = 2
"""Time for running responses to end when the base station is gone."""


def main(arguments: list[str]) -> None:
    """Serve until the base station is gone."""
    parent, link, listener = map(int, arguments)
    as_worker(parent)
    os.nice(NICE)
    logs.configure()
    with socket.socket(fileno=link) as asked, socket.socket(fileno=listener) as listening, loaded_heap_frozen():
        asyncio.run(serve(asked, listening))


async def serve(link: socket.socket, listener: socket.socket) -> None:
    """Serve on a listening socket, for the base station at the other end of `link`."""
    reader, writer = await asyncio.open_connection(sock=link)
    try:
        setup = await receive(reader, MonitorSetup)
    except EOFError:
        return
    station = MonitoredStation(reader, writer)
    history = History()
    feed = Feed(station, history)
    settings = uvicorn.Config(
        make_app(station, feed, setup.token, setup.host),
        http=BoundedHttp,
        log_config=None, log_level="critical", access_log=False, lifespan="off", ws="none", server_header=False,
        backlog=BACKLOG, limit_concurrency=REQUESTS + SPARE, timeout_graceful_shutdown=GRACE_S,
    )  # fmt: skip
    server = uvicorn.Server(settings)

    async def follow() -> None:
        await station.listen()
        server.should_exit = True
        feed.close()  # streams, which the server would wait for

    try:
        await beside([feed.run(), follow(), history.run(station)], server.serve(sockets=[listener]))
    finally:
        writer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
