"""Connections and requests that web servers bound: silent ones, slow heads, too many."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import resource
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from testbed.bs.monitor import web as monitor_web
from testbed.errors import BadInput
from testbed.ue.api import serve as api_serve
from testbed.web import server as web_server
from testbed.web.server import BACKLOG, OTHER_FILES, SPARE, BoundedHttp, RequestLimit, request_limit

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
WAIT_S = 20


class Connection:
    """A client's connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, data: bytes = GET) -> bytes:
        """Status line and what follows; empty if the connection is closed."""
        self._writer.write(data)
        return await self.read()

    async def read(self) -> bytes:
        try:
            return await asyncio.wait_for(self._reader.read(4096), WAIT_S)
        except ConnectionError:
            return b""

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


class Site:
    """A web server; a request for /held is answered once `free` is set."""

    def __init__(self, port: int) -> None:
        self.port, self.free, self.held = port, asyncio.Event(), 0
        self._open: list[Connection] = []

    async def connect(self) -> Connection:
        self._open.append(Connection(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self._open[-1]

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/held":
            self.held += 1
            await self.free.wait()
        await PlainTextResponse("ok")(scope, receive, send)

    def close(self) -> None:
        self.free.set()
        for connection in self._open:
            connection.close()


@contextlib.asynccontextmanager
async def site(connections: int, requests: int = 100) -> AsyncIterator[Site]:
    listener = socket.create_server(("127.0.0.1", 0))
    found = Site(listener.getsockname()[1])
    limited = RequestLimit(found.app, requests, PlainTextResponse("busy", 503), frozenset({"/health"}))
    config = uvicorn.Config(
        limited, http=BoundedHttp, ws="none", lifespan="off", log_config=None, limit_concurrency=connections
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield found
    finally:
        found.close()
        server.should_exit = True
        await serving


async def test_silent_connections_make_room_for_a_request() -> None:
    async with site(connections=20) as web:
        silent = [await web.connect() for _ in range(50)]
        assert (await (await web.connect()).ask()).startswith(b"HTTP/1.1 200")
        assert await silent[0].read() == b""  # the oldest made room
        assert (await silent[-1].ask()).startswith(b"HTTP/1.1 200")


async def test_a_connection_with_a_request_in_progress_is_not_closed() -> None:
    async with site(connections=3) as web:
        asking = await web.connect()
        asking.send(b"GET /held HTTP/1.1\r\nhost: localhost\r\n\r\n")
        while not web.held:
            await asyncio.sleep(0.01)
        for _ in range(10):
            await web.connect()
        web.free.set()
        assert (await asking.read()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("size", [20_000, 40_000])
@pytest.mark.parametrize("before", [b"", GET])
async def test_a_large_head_is_refused_also_if_it_arrives_at_once_or_behind_another_request(
    size: int, before: bytes
) -> None:
    async with site(connections=20) as web:
        asking = await web.connect()
        asking.send(before + GET[:-2] + b"x: " + b"a" * size + b"\r\n\r\n")
        answers = b""
        while piece := await asking.read():
            answers += piece
        assert answers.count(b"HTTP/1.1 200") == bool(before) and answers.count(b"HTTP/1.1 400") == 1
        assert (await (await web.connect()).ask(GET[:-2] + b"x: " + b"a" * 15_000 + b"\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost: loc", GET + b"GET /"])
async def test_a_head_that_does_not_end_is_waited_for_no_longer_than_the_bound(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "HEAD_S", 0.3)
    async with site(connections=20) as web:
        slow, begun_s = await web.connect(), asyncio.get_running_loop().time()
        slow.send(sent)
        while await slow.read():
            pass
        assert 0.2 < asyncio.get_running_loop().time() - begun_s < 5


async def test_a_response_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "HEAD_S", 0.2)
    async with site(connections=20) as web:
        asking = await web.connect()
        asking.send(b"GET /held HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await asyncio.sleep(0.6)
        web.free.set()
        assert (await asking.read()).startswith(b"HTTP/1.1 200")


POST = b"POST /held HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", [b"/held", b"/", b"/health"])
async def test_a_body_of_tiny_chunks_ends_its_connection(path: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Each takes as long to parse as a large one, also where nobody reads the body."""
    async with site(connections=20) as web:
        asking, begun_s = await web.connect(), asyncio.get_running_loop().time()
        asking.send(POST.replace(b"/held", path) + b"1\r\nx\r\n" * 2000)
        answer = b""
        while piece := await asking.read():
            answer += piece
        assert answer.startswith(b"HTTP/1.1 400") and "Exception" not in caplog.text
        assert asyncio.get_running_loop().time() - begun_s < web_server.HEAD_S / 2
        whole = await web.connect()
        body = b"64\r\n" + b"x" * 100 + b"\r\n"
        assert (await whole.ask(POST.replace(b"/held", b"/") + body * 2000 + b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert (await whole.ask()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", [b"/held", b"/", b"/health"])
async def test_a_body_with_two_lengths_ends_its_connection(path: bytes) -> None:
    """A proxy may go by one length and the server by the other: the rest would be another client's request."""
    async with site(connections=20) as web:
        asking = await web.connect()
        head = POST.replace(b"/held", path).replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\n")
        answer = await asking.ask(head + b"5\r\nhello\r\n0\r\n\r\n" + GET)
        while piece := await asking.read():
            answer += piece
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1 and not web.held
        assert (await (await web.connect()).ask()).startswith(b"HTTP/1.1 200")


REFUSED = {
    "no chunk": b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    "two lengths": b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n",
    "large head": b"x: " + b"a" * 20_000 + b"\r\n\r\n",
    "tiny chunks": b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2000,
}


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("before", [b"", GET])
@pytest.mark.parametrize("refused", REFUSED)
async def test_what_is_refused_is_no_error_of_the_request_before_it(
    method: bytes, before: bytes, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A response to HEAD has no body: each such pair left two tracebacks in the log."""
    async with site(connections=20) as web:
        asking = await web.connect()
        asking.send(before + method + b" / HTTP/1.1\r\nhost: localhost\r\n" + REFUSED[refused])
        answers = b""
        while piece := await asking.read():
            answers += piece
        assert answers.count(b"HTTP/1.1 400") == 1
        assert answers.count(b"HTTP/1.1 200") == bool(before)
        assert "Traceback" not in caplog.text and "Exception" not in caplog.text


async def test_received_bytes_are_parsed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other connections have their turn between them."""
    sizes, turns, whole = list[int](), list[int](), H11Protocol.data_received

    def parse(self: H11Protocol, data: bytes) -> None:
        sizes.append(len(data))
        asyncio.get_running_loop().call_soon(turns.append, len(sizes))
        whole(self, data)

    monkeypatch.setattr(H11Protocol, "data_received", parse)
    async with site(connections=20) as web:
        asking = await web.connect()
        head = POST.replace(b"/held", b"/").replace(b"transfer-encoding: chunked", b"content-length: 200000")
        assert (await asking.ask(head + b"x" * 200_000)).startswith(b"HTTP/1.1 200")
        while sum(sizes) < 200_000:
            await asyncio.sleep(0.01)
        assert (await asking.ask()).startswith(b"HTTP/1.1 200")
    assert max(sizes) <= web_server.PIECE_BYTES and turns == list(range(1, len(sizes) + 1))


async def test_what_follows_a_response_and_is_no_http_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with site(connections=20) as web:
        asking = await web.connect()
        assert (await asking.ask(POST.replace(b"/held", b"/"))).startswith(b"HTTP/1.1 200")
        asking.send(b"no chunk\r\n")
        while await asking.read():
            pass
        endless = await web.connect()
        assert (await endless.ask(POST.replace(b"/held", b"/"))).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionError):
            for _ in range(web_server.MOST_LEFT_BYTES // 2**20 + 64):
                endless.send(b"100000\r\n" + bytes(2**20) + b"\r\n")
                await endless.drain()
        assert await endless.read() == b""
    assert "Fatal error" not in caplog.text


async def test_too_many_requests_are_told_so_but_health_is_answered() -> None:
    async with site(connections=20, requests=2) as web:
        for _ in range(2):
            (await web.connect()).send(b"GET /held HTTP/1.1\r\nhost: localhost\r\n\r\n")
        while web.held < 2:
            await asyncio.sleep(0.01)
        other = await web.connect()
        assert (await other.ask()).startswith(b"HTTP/1.1 503")
        assert (await other.ask(GET.replace(b"/ ", b"/health "))).startswith(b"HTTP/1.1 200")
        web.free.set()
        while web.held:
            if (await other.ask()).startswith(b"HTTP/1.1 200"):
                break


@pytest.mark.parametrize(("files", "requests"), [(1 << 16, 640), (512, 512 - OTHER_FILES - SPARE - BACKLOG), (200, 8)])
def test_requests_are_limited_by_open_files(files: int, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert request_limit(640) == requests


def test_too_few_open_files_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 16))
    with pytest.raises(BadInput, match="16 files only; a web server needs 200: ulimit -n 200"):
        request_limit(640)


def test_both_servers_accept_few_connections_in_one_turn() -> None:
    """1,100 at once held the event loop of each up for 150 ms; asyncio accepts as many in a turn as may wait."""
    for module in (api_serve, monitor_web):
        source = inspect.getsource(module)
        assert source.count("uvicorn.Config(") == source.count("backlog=BACKLOG") == 1
    assert web_server.BACKLOG <= 64
