"""HTTP connections of web servers: idle ones are closed in time and make room, and requests in progress are limited."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from testbed.errors import BadInput

HEAD_S = 20.0
"""Time limit for the head of a request, from the start of the connection or the end of the previous response."""
MOST_HEAD_BYTES = 2**14
"""Largest head of a request."""
LINE_BYTES = 4
"""Bytes of a header line beside name and value."""
BACKLOG = 64
"""Most connections that are accepted in one turn of the event loop; more wait in the kernel."""
SPARE = 64
"""Number of connections beyond the limit of requests, so that health is answered in any case."""
OTHER_FILES = 64
"""Number of files that a process opens beside connections."""
LEAST_REQUESTS = 8
PIECE_BYTES = 2**12
"""Bytes that are parsed at once: other connections have their turn before the rest."""
MANY_CHUNKS, LEAST_CHUNK_BYTES = 256, 64
"""Number of chunks of a body beyond which they must have this size on average."""
MOST_LEFT_BYTES = 2**23
"""Most bytes that wait to be parsed, or that follow a response to a request whose body is not complete."""


class BoundedHead(h11.Connection):
    """Server side of a connection that refuses large heads of requests, bodies of many small chunks, each of which
    takes as long as a large one, and bodies whose length a proxy may understand otherwise. h11 itself bounds unfinished
    heads only.
    """

    _chunks = _body_bytes = 0

    def next_event(self) -> Any:
        """The next event.

        Raises:
            RemoteProtocolError: a head of more than `MOST_HEAD_BYTES`, too many small chunks, a body with two lengths,
                or no HTTP.
        """
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._chunks += 1
            self._body_bytes += len(event.data)
            if self._chunks > MANY_CHUNKS and self._body_bytes < LEAST_CHUNK_BYTES * self._chunks:
                raise h11.RemoteProtocolError("the chunks of the body are too small", error_status_hint=400)
        elif isinstance(event, h11.EndOfMessage):
            self._chunks = self._body_bytes = 0
        if isinstance(event, h11.Request):
            fields = sum(len(name) + len(value) + LINE_BYTES for name, value in event.headers)
            if len(event.method) + len(event.target) + fields > MOST_HEAD_BYTES:
                raise h11.RemoteProtocolError("the head of the request is too large", error_status_hint=431)
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:  # RFC 9112, 6.1
                raise h11.RemoteProtocolError("the body has two lengths", error_status_hint=400)
        return event


class BoundedHttp(H11Protocol):
    """HTTP/1.1 connection that is closed if no request arrives in time, or to make room for newer connections.

    uvicorn's `limit_concurrency` bounds the number of connections here; uvicorn itself answers 503 beyond it, also to
    a client with a request, because of others that have none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = BoundedHead(h11.SERVER, MOST_HEAD_BYTES)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._timer: asyncio.TimerHandle | None = None
        self._left, self._unread_bytes = bytearray(), 0
        """Received bytes that are not parsed yet, and the number of those of a body that nobody reads any more."""

    @property
    def serving(self) -> bool:
        """Whether a request is in progress."""
        return bool(self.cycle) and not self.cycle.response_complete  # none before the first request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit, and close the connection that has been idle longest if there are too many."""
        super().connection_made(transport)
        self._await_head()
        if self._most is not None and len(self.connections) > self._most:
            idle = [c for c in self.connections if isinstance(c, BoundedHttp) and c is not self and c.idle]
            min(idle, key=BoundedHttp.idle_until, default=self).give_up()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes piece by piece; stop the time limit once a request has its head."""
        parsing = bool(self._left)
        self._left += data
        if not self.serving:
            self._unread_bytes += len(data)
        if max(len(self._left), self._unread_bytes) > MOST_LEFT_BYTES:
            self.give_up()
        elif not parsing:
            self._parse()

    def _parse(self) -> None:
        """Parse one piece; the rest after other callbacks of the event loop."""
        if self.transport.is_closing():
            return
        super().data_received(bytes(self._left[:PIECE_BYTES]))
        if self.transport.is_closing():
            return
        del self._left[:PIECE_BYTES]
        if self.serving:
            self._unread_bytes = 0
            self._stop_timer()
        if self._left:
            self.transport.pause_reading()
            self.loop.call_soon(self._parse)
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def handle_events(self) -> None:
        """Handle what was parsed, here and, of requests that came ahead, at the end of the response before: an error
        there would be one of that request.
        """
        try:
            super().handle_events()
        except h11.LocalProtocolError:
            self.give_up()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; a request in progress gets no other answer."""
        if self.serving:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # a response to HEAD has no body, and one that has begun gets no other head
            self.transport.close()

    def on_response_complete(self) -> None:
        """Start the time limit anew, unless the next request is there already."""
        super().on_response_complete()
        if not self.serving and not self.transport.is_closing():
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._stop_timer()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether the connection is open and waits for a request."""
        return not self.serving and not self.transport.is_closing()

    def idle_until(self) -> float:
        """End of the time limit."""
        return self._timer.when() if self._timer else 0.0

    def give_up(self) -> None:
        """Close the connection, unless it is closing and only has to send the rest of a response."""
        if not self.transport.is_closing():
            self.transport.abort()

    def _await_head(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_S, self.give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class RequestLimit:
    """ASGI middleware that bounds the number of requests in progress."""

    def __init__(self, app: ASGIApp, most: int, busy: ASGIApp, exempt: frozenset[str]) -> None:
        """`busy`: answers requests beyond `most`; `exempt`: paths that are always served."""
        self._app, self._most, self._busy, self._exempt = app, most, busy, exempt
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in self._exempt:
            await self._app(scope, receive, send)
            return
        if self._count >= self._most:
            await self._busy(scope, receive, send)
            return
        self._count += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._count -= 1


def request_limit(wanted: int) -> int:
    """The number of requests in progress that the limit of open files allows, at most `wanted`.

    Raises:
        BadInput: fewer than `LEAST_REQUESTS`.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    most = files - OTHER_FILES - SPARE - BACKLOG
    if most < LEAST_REQUESTS:
        least = OTHER_FILES + SPARE + BACKLOG + LEAST_REQUESTS
        raise BadInput(f"this process may open {files} files only; a web server needs {least}: ulimit -n {least}")
    return min(wanted, most)
