"""The live view's web application: the page, its updates, metrics for Prometheus, and health checks.

Data from UEs is untrusted, and so is every web site open in the viewer's browser: see `ViewGuard`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.resources
import logging
from typing import NamedTuple

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from testbed.bs.monitor.client import SERVING, MonitoredStation
from testbed.bs.monitor.feed import Feed, TooManyViewers, Viewer
from testbed.bs.monitor.prometheus import exposition
from testbed.web.listening import AccessRules, Refusal
from testbed.web.server import RequestLimit

LOG = logging.getLogger(__name__)
STALL_S = 10.0
"""Timeout for writing an update; a viewer that does not read for this long is dropped."""
PAGE = "page"
STYLES = ("page.css",)
SCRIPTS = ("stream.js", "charts.js", "table.js", "page.js")
"""Scripts, in the order in which they run."""
HEALTH = frozenset({"/healthz", "/readyz"})
"""Paths that are answered however many viewers there are."""
OPEN = HEALTH | {"/"}
"""Paths that need no token; all others do, whatever routes they match."""
REQUESTS = 128
"""Largest number of requests in progress; beyond it, requests are answered 503."""
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def make_app(station: MonitoredStation, feed: Feed, token: str | None, host: str) -> ASGIApp:
    """The application.

    Args:
        token: token that clients must present; None: none.
        host: host that it listens on, as configured.
    """
    page = read_page()

    async def show(_: Request) -> Response:
        return HTMLResponse(page.html, headers={"content-security-policy": page.policy})

    async def healthy(_: Request) -> Response:
        stalled = station.state == SERVING and await station.live() is None and station.state == SERVING
        return PlainTextResponse("stalled\n" if stalled else "ok\n", 503 if stalled else 200)

    async def ready(_: Request) -> Response:
        failing = await station.live()
        state = station.state
        if failing:
            state = f"failing: {', '.join(failing)}"
        elif failing is None and state == SERVING:
            state = "the server does not answer"
        return PlainTextResponse(f"{state}\n", 200 if failing == [] else 503)

    async def metrics(_: Request) -> Response:
        counted = await station.count()
        about = {} if station.serving is None else station.serving.about
        if counted is None and station.state == SERVING:
            return PlainTextResponse("the server does not answer\n", 503)
        text = exposition(station.state, about, len(feed.viewers), counted)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    routes = {"/": show, "/healthz": healthy, "/readyz": ready, "/metrics": metrics}
    app = Starlette(routes=[*(Route(path, answer) for path, answer in routes.items()), Route("/events", Events(feed))])
    limited = RequestLimit(app, REQUESTS, PlainTextResponse("too many requests\n", 503), HEALTH)
    return ViewGuard(limited, token, host)


class Events:
    """ASGI application: updates as server-sent events, until either side ends."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await PlainTextResponse("Method Not Allowed", 405, {"allow": "GET"})(scope, receive, send)
            return
        try:
            with self._feed.viewer() as viewer:
                await _stream(viewer, receive, send)
        except TooManyViewers:
            await PlainTextResponse("too many viewers\n", 503)(scope, receive, send)


async def _stream(viewer: Viewer, receive: Receive, send: Send) -> None:
    """Send a viewer's updates until it disconnects or does not read."""
    leaving = asyncio.ensure_future(_left(receive))
    leaving.add_done_callback(lambda _: viewer.close())
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while (update := await viewer.next()) is not None:
            body: Message = {"type": "http.response.body", "body": update, "more_body": True}
            await asyncio.wait_for(send(body), STALL_S)
        await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), STALL_S)
    except (OSError, asyncio.TimeoutError):
        return
    finally:
        leaving.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ViewGuard:
    """ASGI middleware that applies the access rules and sets security headers."""

    def __init__(self, app: ASGIApp, token: str | None, host: str) -> None:
        self._app, self._rules = app, AccessRules(token, host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = self._rules.refusal(scope["method"], Headers(scope=scope), secret=scope["path"] not in OPEN)

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await (_refused(refusal) if refusal else self._app)(scope, receive, sealed)
        except Exception:
            LOG.exception("the live view failed at %r", scope["path"])
            raise


def _refused(refusal: Refusal) -> Response:
    headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else None
    return PlainTextResponse(f"{refusal.message}\n", refusal.status, headers)


# ---------------------------------------------------------------- the page


class Page(NamedTuple):
    """The page as one file."""

    html: str
    policy: str
    """Content security policy of the page: its own script, style and updates only."""


def read_page() -> Page:
    """Assemble the page from its parts in the package."""
    folder = importlib.resources.files("testbed.bs.monitor") / PAGE
    style = "".join((folder / name).read_text(encoding="utf-8") for name in STYLES)
    parts = "".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";\n{parts}'
    html = (folder / "page.html").read_text(encoding="utf-8")
    html = html.replace("<style></style>", f"<style>{style}</style>")
    html = html.replace("<script></script>", f"<script>{script}</script>")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html, policy)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
