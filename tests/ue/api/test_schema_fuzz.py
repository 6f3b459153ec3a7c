"""Requests generated from the endpoint's OpenAPI document (schemathesis): every answer is in OpenAI's format."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from testbed.config import EndpointConfig
from testbed.ue.api.app import Service, make_app
from tests.support.endpoints import MODEL, endpoint

REQUESTS = int(os.environ.get("TESTBED_FUZZ", "0"))
"""Number of requests of the long run."""
SHORT = 60
"""Number of requests of the short run, per operation and kind."""
STALL_S = 1.0
"""Longest pause of the event loop; the machine may be busy."""
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)


class Running:
    """An endpoint in a process of its own."""

    def __init__(self, directory: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=serve_until_told, args=(directory, theirs))

    def __enter__(self) -> Running:
        self._process.start()
        assert self._ours.poll(60)
        self.url = self._ours.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send("stop")
        self._process.join(60)

    def longest_s(self) -> float:
        """Longest pause of its event loop so far."""
        self._ours.send("how long")
        assert self._ours.poll(60)
        return float(self._ours.recv())


def serve_until_told(directory: Path, control: Connection) -> None:
    """Serve, and answer questions about the event loop's pauses."""
    asyncio.run(_serve(directory, control))


async def _serve(directory: Path, control: Connection) -> None:
    async with endpoint(directory, EndpointConfig(window=4, max_tokens=2)) as site:
        loop, longest_s = asyncio.get_running_loop(), 0.0
        control.send(site.url)
        last_s = loop.time()
        while True:
            await asyncio.sleep(0.005)
            now_s = loop.time()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
            if control.poll():
                if control.recv() == "stop":
                    return
                control.send(longest_s)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("endpoint")) as found:
        yield found


def kinds() -> list[Any]:
    """Each operation of the endpoint's own document with each kind of request: valid ones, and invalid bodies."""
    unused: Any = None
    document = make_app(Service(unused, unused, unused, MODEL, 0)).openapi()
    found = schemathesis.openapi.from_dict(document).include(path_regex="^/v1/").get_all_operations()
    return [
        pytest.param(operation, mode, id=f"{operation.path}-{mode.value}")
        for operation in (each.ok() for each in found)
        for mode in GenerationMode
        if operation.body or mode is GenerationMode.POSITIVE
    ]


def send(running: Running, operation: Any, mode: GenerationMode, requests: int) -> None:
    """Send generated requests, and check every answer against the document."""

    @settings(
        max_examples=requests, deadline=None, database=None, derandomize=requests == SHORT,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(operation.as_strategy(generation_mode=mode))
    def each(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body.pop("model", None)  # nearly all names are unknown
        answer = case.call(base_url=running.url, timeout=60)
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    each()


@pytest.mark.parametrize(("operation", "mode"), kinds())
def test_generated_requests_are_answered_in_openais_format(
    running: Running, operation: Any, mode: GenerationMode
) -> None:
    send(running, operation, mode, SHORT)
    assert running.longest_s() < STALL_S


@pytest.mark.fuzz
@pytest.mark.skipif(not REQUESTS, reason="set TESTBED_FUZZ to the number of requests")
@pytest.mark.timeout(24 * 3600)
def test_many_generated_requests(running: Running) -> None:
    for operation, mode in (kind.values for kind in kinds()):
        send(running, operation, mode, REQUESTS // len(kinds()))
    print(f"{REQUESTS} requests; longest pause of the event loop {running.longest_s() * 1000:.0f} ms")
    assert running.longest_s() < STALL_S
