"""Limits on the size of request bodies and on the time to receive them."""

from __future__ import annotations

import asyncio
import contextlib
import re

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from testbed.ue.api.schema import ApiError

MOST_BYTES = 2**20
"""Largest body."""
MOST_BRACKETS = 2**15
"""Largest number of lists and objects of a body, brackets in texts included: each costs more than its bytes."""
MOST_KEYS = 2**15
"""Largest number of keys of all objects of a body, those in texts included: unknown ones are kept, too."""
_KEY = re.compile(rb'"\s*:')
WITHIN_S = 30.0
"""Time limit for receiving a body."""
MOST_DISCARDED = 4 * 2**20
"""Bytes of a body that are received and dropped after it is known to be too large. A connection that is closed with
unread bytes is reset, and its client may not get the answer.
"""
DISCARDED_WITHIN_S = 2.0
"""Time limit for receiving what is dropped."""


class BoundedBodies:
    """ASGI middleware that reads each body completely: answers 413 if it is too large, 408 if it takes too long, and
    503 if the web server stops meanwhile.

    Args:
        unread: paths whose requests are served without their bodies. Without this, a client that may not do anything
            else could keep connections busy with bodies that never end.
    """

    def __init__(
        self,
        app: ASGIApp,
        most_bytes: int = MOST_BYTES,
        within_s: float = WITHIN_S,
        *,
        unread: frozenset[str] = frozenset(),
    ) -> None:
        self._app, self._most_bytes, self._within_s, self._unread = app, most_bytes, within_s, unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in self._unread:
            await self._app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(scope, receive), self._within_s)
        except asyncio.TimeoutError:
            error = ApiError(408, f"the body did not come within {self._within_s:g} s", code="request_timeout")
        except asyncio.CancelledError:  # by the web server; the task ends with the answer
            error = ApiError(503, "the endpoint is stopping", kind="server_error", code="unavailable")
        except ApiError as too_large:
            error = too_large
        else:
            if body is not None:
                await self._app(_as_json(scope), _replayed(body, receive), send)
            return
        await JSONResponse(error.body, error.status, {"connection": "close"})(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """A request's body; None if the client disconnected.

        Raises:
            ApiError: the body is too large.
        """
        if _declared(scope) > self._most_bytes:
            await _discard(scope, receive)
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
            if len(body) > self._most_bytes:
                await _discard(scope, receive)
                raise self._too_large()
        if len(body) > self._most_bytes:
            raise self._too_large()
        if body.count(b"[") + body.count(b"{") > MOST_BRACKETS or sum(1 for _ in _KEY.finditer(body)) > MOST_KEYS:
            raise self._too_large()
        return bytes(body)

    def _too_large(self) -> ApiError:
        most = f"{self._most_bytes} bytes, {MOST_BRACKETS} opening brackets and braces, and {MOST_KEYS} keys"
        bound = f"a body has at most {most}"
        return ApiError(413, bound, code="request_too_large")


def _declared(scope: Scope) -> int:
    """Bytes that a request's body has according to its headers; 0 if they do not say."""
    declared = Headers(scope=scope).get("content-length", "")
    return int(declared[:20]) if declared.isdecimal() else 0


async def _discard(scope: Scope, receive: Receive) -> None:
    """Receive the rest of a body that is too large, unless its client waits for permission to send it."""
    if "expect" in Headers(scope=scope) or _declared(scope) > MOST_DISCARDED:
        return

    async def rest() -> None:
        left, more = MOST_DISCARDED, True
        while more and left > 0:
            message = await receive()
            more = message.get("more_body", False)
            left -= len(message.get("body", b""))

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(rest(), DISCARDED_WITHIN_S)


def _as_json(scope: Scope) -> Scope:
    """A request whose body is JSON, whatever type it declares: the API takes nothing else, and `curl -d` declares a
    form.
    """
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body in one piece, and then further messages."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
