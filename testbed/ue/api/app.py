"""Web application of the endpoint: OpenAI's completions and chat API, with streaming and OpenAI's error format."""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import fastapi
import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from testbed.errors import BadInput, LinkError, ModelError, TestbedError
from testbed.process.threads import started_threads
from testbed.tasks import beside, together
from testbed.ue.api.backend import Backend, Closing, DecodingJob, Ended, OutputRequest, QueueFull, Text
from testbed.ue.api.bodies import BoundedBodies
from testbed.ue.api.replies import ChatReply, Reply
from testbed.ue.api.schema import (
    ApiError,
    ApiRequest,
    ChatRequest,
    CompletionRequest,
    ErrorReply,
    RequestLimits,
)
from testbed.ue.prompts import Prompter
from testbed.web.listening import AccessRules, Refusal
from testbed.web.server import RequestLimit

GONE = 499
"""Status of a response that no one reads, because the client disconnected."""
HEALTH = "/health"
OPEN = frozenset({HEALTH})
"""Paths that are served without a key and however many requests are in progress."""
REQUESTS = 640
"""Largest number of requests in progress; beyond it, requests are answered 503. Load generators send 512 at once."""
TOKENIZED = 2
"""Number of prompts that are tokenized at once, in threads of their own, those of clients that have gone included."""
STATUS_CODES = {404: "not_found", 405: "method_not_allowed"}


@dataclass(frozen=True)
class Service:
    """Settings of an endpoint.

    Attributes:
        name: name of the model.
        created: start time, in seconds since 1970.
        token: API key that clients must send; None: no key.
        host: address or name that the endpoint listens on.
        requests: largest number of requests in progress.
    """

    backend: Backend
    prompter: Prompter
    limits: RequestLimits
    name: str
    created: int
    token: str | None = None
    host: str = ""
    requests: int = REQUESTS
    tokenizing: Executor = field(default_factory=lambda: started_threads(TOKENIZED, "tokenizing"))

    def models(self) -> list[dict[str, Any]]:
        """List of the one model, in OpenAI's format."""
        return [{"id": self.name, "object": "model", "created": self.created, "owned_by": "testbed"}]


def make_app(service: Service) -> FastAPI:
    """Create the web application; its paths exist with and without /v1."""
    app = FastAPI(title="testbed", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BoundedBodies, unread=OPEN)
    app.add_middleware(RequestLimit, most=service.requests, busy=_busy, exempt=OPEN)
    app.add_middleware(EndpointGuard, rules=AccessRules(service.token, service.host))
    for error, answer in (
        (ApiError, _refused),
        (HTTPException, _unknown),
        (RequestValidationError, _malformed),
        (Exception, _failed),
    ):
        app.add_exception_handler(error, answer)  # type: ignore[arg-type]
    routes = _routes(service)
    app.include_router(routes, prefix="/v1")
    app.include_router(routes)
    app.add_api_route(HEALTH, _health_of(service))
    return app


class EndpointGuard:
    """ASGI middleware that applies the access rules; health is open to all."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        refusal = None
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal = self._rules.refusal(scope["method"], headers, secret=scope["path"] not in OPEN)
        await (_refusal(refusal) if refusal else self._app)(scope, receive, send)


def _routes(service: Service) -> APIRouter:
    routes = APIRouter(responses=ERRORS)

    @routes.get("/models")
    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": service.models()})

    @routes.get("/models/{name:path}")
    async def model(name: str) -> JSONResponse:
        if name != service.name:
            message = f"the model {reprlib.repr(name)} does not exist"
            raise ApiError(404, message, param="model", code="model_not_found")
        return JSONResponse(service.models()[0])

    @routes.post("/completions", responses=STREAMED)
    async def completions(body: CompletionRequest, request: fastapi.Request) -> Response:
        return await _answer(service, request, body, Reply)

    @routes.post("/chat/completions", responses=STREAMED)
    async def chat(body: ChatRequest, request: fastapi.Request) -> Response:
        return await _answer(service, request, body, ChatReply)

    return routes


async def _answer(service: Service, request: fastapi.Request, body: ApiRequest, kind: type[Reply]) -> Response:
    """Decode and answer; jobs are cancelled if the client disconnects, and their slots are freed in any case."""
    jobs: list[DecodingJob] = []
    streamed = False
    try:
        orders = await beside([_client_stays(request)], _orders(service, body))
        jobs = [service.backend.job(order) for order in orders]
        reply = kind(service.name, sum(len(order.prompt) for order in orders))
        if not body.stream:
            service.backend.check_room(len(jobs))
            ended = await beside([_client_stays(request)], together(_whole(job) for job in jobs))
            return JSONResponse(reply.whole(*zip(*ended, strict=True)))
        first = await beside([_client_stays(request)], _begin(jobs[0]))
        streamed = True
        return _JobStream(jobs, _events(jobs, first, reply, body.wants_usage()))
    except _Gone:
        return Response(status_code=GONE)
    except TestbedError as exc:
        raise _api_error(exc) from exc
    finally:
        for job in jobs if not streamed else ():
            job.cancel()


async def _orders(service: Service, body: ApiRequest) -> list[OutputRequest]:
    """The request as orders; long prompts are tokenized beside the event loop."""
    body.check(service.name)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(service.tokenizing, body.orders, service.prompter, service.limits)


async def _begin(job: DecodingJob) -> Text | Ended:
    await job.begin()
    return await job.next()


async def _whole(job: DecodingJob) -> tuple[str, Ended]:
    """Text and end of one output."""
    texts, event = [], await _begin(job)
    while isinstance(event, Text):
        texts.append(event.text)
        event = await job.next()
    return "".join(texts), event


async def _events(jobs: Sequence[DecodingJob], event: Text | Ended, reply: Reply, usage: bool) -> AsyncIterator[bytes]:
    """Server-sent events of a stream, one prompt after another; an error is sent as the last event."""
    for chunk in reply.opening():
        yield _event(chunk)
    ends = []
    try:
        for i, job in enumerate(jobs):
            event = await _begin(job) if i else event
            while isinstance(event, Text):
                yield _event(reply.chunk(event.text, i))
                event = await job.next()
            ends.append(event)
            yield _event(reply.last(event, i))
    except TestbedError as exc:
        yield _event(_api_error(exc).body)
        return
    if usage:
        yield _event(reply.usage(ends))
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


class _JobStream(StreamingResponse):
    """A stream that frees its jobs' slots at its end, also if the client disconnects."""

    def __init__(self, jobs: Sequence[DecodingJob], events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._jobs = jobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            for job in self._jobs:
                job.cancel()


class _Gone(Exception):
    """The client disconnected."""


async def _client_stays(request: fastapi.Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise _Gone


# ---------------------------------------------------------------- errors


def _api_error(error: TestbedError) -> ApiError:
    """The API error for an error of the testbed."""
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), kind="rate_limit_error", code="rate_limit_exceeded")
    if isinstance(error, BadInput) and not isinstance(error, ModelError):
        return ApiError(400, str(error))
    if isinstance(error, LinkError | Closing):
        return ApiError(503, str(error), kind="server_error", code="unavailable")
    return ApiError(502, str(error), kind="server_error", code="backend_error")


ERRORS: dict[int | str, dict[str, Any]] = {
    name: {"description": "An error in OpenAI's format.", "model": ErrorReply} for name in ("4XX", "5XX")
}

STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def _refusal(refusal: Refusal) -> JSONResponse:
    if refusal.status == 401:
        error = ApiError(401, "wrong or missing API key", kind="authentication_error", code="invalid_api_key")
    else:
        error = ApiError(refusal.status, refusal.message, code="forbidden")
    return JSONResponse(error.body, error.status)


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    error = ApiError(503, "too many requests are in progress", kind="server_error", code="unavailable")
    await JSONResponse(error.body, error.status, {"retry-after": "1"})(scope, receive, send)


async def _refused(_: fastapi.Request, error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status, {"retry-after": "1"} if error.status == 429 else None)


async def _unknown(request: fastapi.Request, error: HTTPException) -> JSONResponse:
    message = f"{request.method} {request.url.path}: {error.detail}"
    known = ApiError(error.status_code, message, code=STATUS_CODES.get(error.status_code))
    return JSONResponse(known.body, error.status_code, error.headers)


async def _malformed(request: fastapi.Request, error: RequestValidationError) -> JSONResponse:
    """Report the first error in a body, with its position."""
    wrong = error.errors()[0]
    where = ".".join(str(part) for part in wrong["loc"] if part != "body")
    if wrong["type"] == "json_invalid":
        return await _refused(request, ApiError(400, f"the body is not JSON: {wrong['ctx']['error']}"))
    message = f"{where}: {wrong['msg']}" if where else f"the body must be a JSON object: {wrong['msg']}"
    return await _refused(request, ApiError(400, message, param=where or None))


async def _failed(request: fastapi.Request, _: Exception) -> JSONResponse:
    return await _refused(request, ApiError(500, "the endpoint failed; its log says more", kind="server_error"))


def _health_of(service: Service) -> Callable[[], Awaitable[JSONResponse]]:
    """The route of `HEALTH`: 200 while the BS answers and serves what it served at the start, else 503."""

    async def health() -> JSONResponse:
        if reason := await service.backend.trouble():
            return JSONResponse({"status": "unavailable", "reason": reason}, 503)
        return JSONResponse({"status": "ok"})

    return health
