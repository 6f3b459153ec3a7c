"""`testbed ue serve` as a process beside a base station's, with the bundled pair and the official client."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import openai
import pytest

from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.runs.processes import base_station
from testbed.models.bundle import bundled
from testbed.models.export import export_gguf
from testbed.models.random_model import RandomModel, make_random
from testbed.ue.client import Client
from testbed.ue.prompts import Prompter
from testbed.ue.target_only import decode_remotely

PROMPTS = 3
LENGTH = 64


@pytest.fixture(scope="module")
def bs() -> Iterator[str]:
    model = str(bundled().require("target"))
    with base_station(ServeConfig(engine="transformers", model=model, bind="tcp://127.0.0.1:*")) as ready:
        yield ready["bind"]


class Endpoint(NamedTuple):
    """A running process and a client of it."""

    ready: dict[str, Any]
    client: openai.OpenAI
    process: subprocess.Popen[str]


@contextlib.contextmanager
def serving(bs: str, *options: str, program: tuple[str, str] = ("-m", "testbed")) -> Iterator[Endpoint]:
    command = [sys.executable, *program, "ue", "serve", "--json", "--bs", bs, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stderr
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        ready = json.loads(line)
        with openai.OpenAI(base_url=ready["url"] + "/v1", api_key="key", max_retries=0, timeout=60) as client:
            yield Endpoint(ready, client, process)
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()
        process.stderr.close()


@pytest.fixture(scope="module")
def endpoint(bs: str) -> Iterator[Endpoint]:
    with serving(bs, "--protocol", "sh,split", "--window", "6", "--sequences", "2", "--queue", "0") as running:
        yield running


@pytest.fixture(scope="module")
def questions() -> list[str]:
    return [example.question for example in load_dataset("bundled:test", PROMPTS)]


@pytest.fixture(scope="module")
def own(bs: str, questions: list[str]) -> list[str]:
    """The target's own greedy output."""
    prompter = Prompter(bundled().require("tokenizer"))

    async def decode() -> list[str]:
        client = Client(ZmqLink(bs, new_identity()), WallClock(), 1)
        try:
            welcome = await client.connect(prompter.fingerprint, prompter.vocab_size)
            prompts = [prompter.ids(question) for question in questions]
            records = [await decode_remotely(client, p, LENGTH, welcome.end_ids) for p in prompts]
            return [prompter.text(r.token_ids) for r in records]
        finally:
            await client.close()

    return asyncio.run(decode())


def test_it_says_where_it_is(endpoint: Endpoint) -> None:
    assert endpoint.ready == {
        "ready": True,
        "url": endpoint.ready["url"],
        "pid": endpoint.process.pid,
        "model": "target",
    }
    assert [model.id for model in endpoint.client.models.list()] == ["target"]


def test_temperature_0_is_the_targets_own_greedy_output(
    endpoint: Endpoint, questions: list[str], own: list[str]
) -> None:
    for question, expected in zip(questions, own, strict=True):
        options: dict[str, Any] = {"model": "target", "temperature": 0, "max_tokens": LENGTH}
        chat = endpoint.client.chat.completions.create(messages=[{"role": "user", "content": question}], **options)
        assert chat.choices[0].message.content == expected
        prompt = f"Question: {question}\nAnswer:"
        whole = endpoint.client.completions.create(prompt=prompt, **options)
        stream = endpoint.client.completions.create(prompt=prompt, **options, stream=True)
        assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in stream) == expected
        spent = (whole.model_extra or {})["speculation"]
        assert whole.usage is not None and spent["protocol"] == "sh" and spent["rounds"] < whole.usage.completion_tokens


def test_no_thread_starts_with_a_request(bs: str) -> None:
    """What cannot start at a request must fail when the process starts."""
    with serving(bs) as (_, client, process):
        threads = Path(f"/proc/{process.pid}/task")
        before = len(list(threads.iterdir()))
        for stream in (False, True):
            list(client.completions.create(model="target", prompt="What is 2 plus 3?", max_tokens=8, stream=stream))
        assert len(list(threads.iterdir())) == before


def test_a_stop_string_cuts(endpoint: Endpoint, questions: list[str], own: list[str]) -> None:
    stop = own[0][12:20]
    answer = endpoint.client.completions.create(
        model="target", prompt=f"Question: {questions[0]}\nAnswer:", temperature=0, max_tokens=LENGTH, stop=stop
    )
    assert answer.choices[0].text == own[0][: own[0].index(stop)] and answer.choices[0].finish_reason == "stop"


def test_a_seed_repeats_what_is_drawn(endpoint: Endpoint, questions: list[str]) -> None:
    def draw(seed: int) -> str:
        messages: Any = [{"role": "user", "content": questions[0]}]
        ask = endpoint.client.chat.completions.create
        return ask(model="target", messages=messages, seed=seed, max_tokens=LENGTH).choices[0].message.content or ""

    first, again, *others = (draw(seed) for seed in (5, 5, 6, 7))
    assert first == again and any(other != first for other in others)


def test_errors(endpoint: Endpoint) -> None:
    for options, kind in (
        ({"model": "other"}, openai.NotFoundError),
        ({"n": 3}, openai.BadRequestError),
        ({"logprobs": 5}, openai.BadRequestError),
        ({"max_tokens": 10**6}, openai.BadRequestError),
    ):
        with pytest.raises(kind):
            endpoint.client.completions.create(**{"model": "target", "prompt": "Question:", **options})


def test_clients_that_leave_make_room(endpoint: Endpoint) -> None:
    endless: dict[str, Any] = {"model": "target", "prompt": "Question:", "max_tokens": 1500, "temperature": 0}

    def begin() -> openai.Stream[Any]:
        return endpoint.client.completions.create(**endless, stream=True, extra_body={"ignore_eos": True})

    streams = [begin(), begin()]
    with pytest.raises(openai.RateLimitError):  # two places, no queue
        begin()
    for stream in streams:
        stream.close()
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(openai.RateLimitError):
            assert endpoint.client.completions.create(model="target", prompt="Question:", max_tokens=2).choices
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_in_the_midst_of_a_stream(bs: str, number: signal.Signals) -> None:
    with serving(bs) as running:
        stream = running.client.completions.create(
            model="target",
            prompt="Question:",
            max_tokens=1500,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        os.kill(running.ready["pid"], number)
        with pytest.raises(openai.APIError, match="stopping"):
            list(stream)
        assert running.process.wait(30) == 0
        assert running.process.stderr and "Traceback" not in running.process.stderr.read()


@pytest.mark.slow
def test_a_lost_bs_and_its_return_are_said_and_shown_by_health() -> None:
    model = str(bundled().require("target"))

    def health(url: str) -> int:
        with contextlib.closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)) as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status

    def said(text: str) -> None:
        assert running.process.stderr
        assert any(text in line for line in iter(running.process.stderr.readline, ""))

    config = ServeConfig(engine="transformers", model=model, bind="tcp://127.0.0.1:*")
    with contextlib.ExitStack() as stack:
        with base_station(config) as ready:
            running = stack.enter_context(serving(ready["bind"]))
            assert health(running.ready["url"]) == 200
        said("the BS has not answered for")  # nobody asked for anything
        assert health(running.ready["url"]) == 503
        with base_station(msgspec.structs.replace(config, bind=ready["bind"])):
            said("the BS answers again")
            assert health(running.ready["url"]) == 200
            assert running.client.completions.create(model="target", prompt="Question:", max_tokens=2).choices


REFUSED = [
    (["--host", "0.0.0.0"], 2, "--token-file"),
    (["--bs", "tcp://127.0.0.1:9", "--timeout", "0.5"], 1, "did not answer"),
]


@pytest.mark.parametrize(("options", "code", "says"), REFUSED)
def test_what_cannot_be_served_is_one_line(options: list[str], code: int, says: str) -> None:
    command = [sys.executable, "-m", "testbed", "ue", "serve", "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code and done.stdout == ""
    assert says in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_key_opens_it_to_others(bs: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    key.chmod(0o600)
    with serving(bs, "--host", "0.0.0.0", "--token-file", str(key)) as running:
        with pytest.raises(openai.AuthenticationError):
            running.client.models.list()
        assert running.client.with_options(api_key="s3cret").models.list().data


BROKEN = """
from testbed.cli.main import run
from testbed.ue.api.backend import Backend

async def decode(self, order, tell):
    raise SystemExit("broken")

Backend.decode = decode
run()
"""


def test_an_endpoint_whose_drafting_thread_ends_ends_with_status_1(bs: str) -> None:
    with serving(bs, program=("-c", BROKEN)) as broken:
        with pytest.raises(openai.APIError):
            broken.client.completions.create(model=broken.ready["model"], prompt="1", max_tokens=4)
        assert broken.process.wait(30) == 1
        assert broken.process.stderr is not None
        assert "its drafting thread has ended" in broken.process.stderr.read()


def test_a_long_model_has_its_own_positions_unless_told_otherwise(tmp_path: Path) -> None:
    target, drafter = tmp_path / "target", tmp_path / "drafter.gguf"
    make_random(RandomModel(hidden=64, heads=2, layers=1, ffn=64, positions=8192), target)
    export_gguf(target, drafter)
    pair = ["--drafter", str(drafter), "--tokenizer", str(target), "--sequences", "1"]
    config = ServeConfig(engine="transformers", model=str(target), bind="tcp://127.0.0.1:*")
    with base_station(config) as ready:
        with serving(ready["bind"], *pair) as running:
            whole = running.client.completions.create(
                model="target", prompt=[5] * 8000, max_tokens=191, temperature=0, timeout=240
            )
            assert whole.usage and whole.usage.total_tokens == 8191
            with pytest.raises(openai.BadRequestError, match=r"exceed the context of 8192 tokens.*--context"):
                running.client.completions.create(model="target", prompt=[5] * 8000, max_tokens=192)
        with (
            serving(ready["bind"], *pair, "--context", "2048") as running,
            pytest.raises(openai.BadRequestError, match=r"exceed the context of 2048 tokens.*--context"),
        ):
            running.client.completions.create(model="target", prompt=[5] * 2000, max_tokens=49)
