"""The live view's web server on a real socket: silent connections, many requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from testbed.bs.monitor.app import REQUESTS
from testbed.bs.monitor.feed import MOST_VIEWERS
from testbed.bs.monitor.web import serve
from testbed.bs.monitor.wire import MonitorSetup, frame
from testbed.web.server import SPARE


@contextlib.asynccontextmanager
async def view() -> AsyncIterator[int]:
    """A live view of a base station that does not serve yet; its port."""
    ours, theirs = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0))
    ours.sendall(frame(MonitorSetup("127.0.0.1", None)))
    serving = asyncio.create_task(serve(theirs, listener))
    try:
        yield listener.getsockname()[1]
    finally:
        ours.close()
        await asyncio.wait_for(serving, 20)


async def test_silent_connections_and_viewers_leave_health_and_the_page_alone() -> None:
    async with view() as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        silent = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(REQUESTS + SPARE + 20)]
        async with contextlib.AsyncExitStack() as viewers:
            for _ in range(MOST_VIEWERS):
                await viewers.enter_async_context(client.stream("GET", "/events"))
            assert (await client.get("/events")).status_code == 503
            assert (await client.get("/healthz")).text == "ok\n"
            assert (await client.get("/readyz")).text == "loading\n"
            assert (await client.get("/")).status_code == 200
        for writer in silent:
            writer.close()


async def test_a_live_view_that_cannot_read_what_it_is_told_ends_with_an_error() -> None:
    """Malformed data must not look like a silent base station."""
    ours, theirs = socket.socketpair()
    with ours, socket.create_server(("127.0.0.1", 0)) as listener:
        ours.sendall(frame(MonitorSetup("127.0.0.1", None)) + (3).to_bytes(4, "little") + b"\xc1\xc1\xc1")
        with pytest.raises(msgspec.DecodeError):
            await asyncio.wait_for(serve(theirs, listener), 20)
