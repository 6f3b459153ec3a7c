"""Requests generated from the endpoint's OpenAPI document (schemathesis): every answer is in OpenAI's format, and what
a neighbour gets does not change.

`make fuzz` sends many requests: TESTBED_FUZZ says how many, TESTBED_FUZZ_SEED is the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import multiprocessing
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from testbed.process.heap import loaded_heap_frozen
from testbed.tasks import cancel
from testbed.ue.api.app import Service, make_app
from testbed.ue.api.config import EndpointConfig
from testbed.ue.api.schema import ChatRequest, CompletionRequest
from tests.support.endpoints import MODEL, endpoint
from tests.support.heartbeat import Heartbeat, Stall, run_undelayed
from tests.support.hostile.bodies import mutated, sound

with contextlib.suppress(ImportError):  # else while requests are generated, where the parser of CPython 3.11 can fail
    importlib.import_module("schemathesis.python._constants.orchestrator")

REQUESTS = int(os.environ.get("TESTBED_FUZZ", "0"))
"""Number of requests of the long run."""
SEED = int(os.environ.get("TESTBED_FUZZ_SEED", "0"))
SHORT = 30
"""Number of requests of the short run, per operation and kind."""
STALL_S = 0.1
"""Longest stall of the event loop, without the time in which the machine ran something else; for long runs alone."""
WAIT_S = 300.0
MUTANTS, GETS = 19, 100
"""Mutated requests for each generated one of the long run, and its requests without a body, per operation."""
FIELDS = tuple({**CompletionRequest.model_fields, **ChatRequest.model_fields})
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)


class Running:
    """An endpoint in a process of its own."""

    def __init__(self, directory: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=serve_until_told, args=(directory, theirs))

    def __enter__(self) -> Running:
        self._process.start()
        assert self._ours.poll(WAIT_S)
        self.url = self._ours.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send("stop")
        self._process.join(WAIT_S)

    def stall(self) -> Stall:
        """Longest stalls of its event loop so far."""
        self._ours.send("how long")
        assert self._ours.poll(WAIT_S)
        return Stall(*self._ours.recv())


def serve_until_told(directory: Path, control: Connection) -> None:
    """Serve, and answer questions about the event loop's stalls."""
    if REQUESTS:
        run_undelayed()
    with loaded_heap_frozen():
        asyncio.run(_serve(directory, control))


async def _serve(directory: Path, control: Connection) -> None:
    async with endpoint(directory, EndpointConfig(window=4, max_tokens=2)) as site:
        beating = Heartbeat()
        beat = asyncio.create_task(beating.beat())
        control.send(site.url)
        while True:
            await asyncio.sleep(0.02)
            if control.poll():
                if control.recv() == "stop":
                    break
                control.send(tuple(beating.stall))
        await cancel(beat)


class Neighbour(threading.Thread):
    """Sends the same greedy request over and over.

    Attributes:
        compared: number of answers like the first.
        wrong: an answer that differed.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self._done = url, threading.Event()
        self.compared, self.wrong = 0, ""
        self._expected = self._ask()

    def _ask(self) -> str:
        body = {"prompt": "w1 w2 w3", "max_tokens": 16, "temperature": 0}
        return str(httpx.post(f"{self._url}/v1/completions", json=body, timeout=WAIT_S).json()["choices"][0]["text"])

    def run(self) -> None:
        while not self._done.wait(0.05) and not self.wrong:
            answer = self._ask()
            if answer == self._expected:
                self.compared += 1
            else:
                self.wrong = answer

    def finish(self) -> int:
        """End; the number of answers, all like the first."""
        self._done.set()
        self.join(WAIT_S)
        assert not self.is_alive() and not self.wrong
        return self.compared


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


class Sender:
    """Sends generated requests, and checks every answer against the document.

    Args:
        url: the endpoint.
        mutants: further requests for each that has a body: mutated copies of it, and nearly sound ones by turns.

    Attributes:
        sent: number of requests.
        statuses: how often each status was the answer.
    """

    def __init__(self, url: str, mutants: int = 0) -> None:
        self._url, self._mutants, self._rng = url, mutants, random.Random(SEED)
        self._web = httpx.Client(base_url=url, timeout=WAIT_S)
        self.sent, self.statuses = 0, Counter[int]()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._web.close()

    def send(self, operation: Any, mode: GenerationMode, count: int) -> None:
        """Send about as many requests as told, mutated ones included; fewer if there are not so many."""

        @seed(SEED)
        @settings(
            max_examples=max(1, count // (self._mutants + 1)), deadline=None, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(operation.as_strategy(generation_mode=mode))
        def each(case: Any) -> None:
            self._generated(case)
            for number in range(self._mutants if isinstance(case.body, dict) else 0):
                if number % 2:
                    self._mutant(operation.path, mutated(self._rng, case.body, FIELDS, self._rng.randint(1, 3)))
                else:
                    self._nearly_sound(operation.path)

        each()

    def _generated(self, case: Any) -> None:
        if isinstance(case.body, dict):
            case.body.pop("model", None)  # nearly all names are unknown
        answer = case.call(base_url=self._url, timeout=WAIT_S)
        case.validate_response(answer, checks=CHECKS)
        self._count(answer)

    def _nearly_sound(self, path: str) -> None:
        """A request that gets outputs, mostly with one change."""
        changes = self._rng.choice([0, 1, 1, 1])
        status = self._mutant(path, mutated(self._rng, sound(self._rng, "chat" in path), FIELDS, changes))
        assert changes or status == 200

    def _mutant(self, path: str, body: bytes) -> int:
        answer = self._web.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, (answer.status_code, body)
        self._count(answer)
        return answer.status_code

    def _count(self, answer: httpx.Response | requests.Response) -> None:
        self.sent += 1
        self.statuses[answer.status_code] += 1
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("operation", "mode"), kinds())
def test_generated_requests_are_answered_in_openais_format(
    running: Running, operation: Any, mode: GenerationMode
) -> None:
    with Sender(running.url, mutants=2) as sender:
        sender.send(operation, mode, SHORT)


@pytest.mark.fuzz
@pytest.mark.skipif(not REQUESTS, reason="set TESTBED_FUZZ to the number of requests")
@pytest.mark.timeout(24 * 3600)
def test_many_generated_requests(running: Running) -> None:
    neighbour = Neighbour(running.url)
    neighbour.start()
    bodies = [kind.values for kind in kinds() if kind.values[0].body]
    with Sender(running.url, MUTANTS) as sender:
        for operation, mode in (kind.values for kind in kinds()):
            sender.send(operation, mode, REQUESTS // len(bodies) if operation.body else GETS)
    stall, compared = running.stall(), neighbour.finish()
    print(f"\n{sender.sent} requests, seed {SEED}; {compared} answers of a neighbour equal")
    print(f"longest stall {stall}; statuses: {dict(sender.statuses.most_common())}")
    assert stall.running_s < STALL_S
