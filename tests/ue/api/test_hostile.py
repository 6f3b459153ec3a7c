"""Requests that are meant to stall, misuse or break the endpoint."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from testbed.ue.api.bodies import MOST_BRACKETS
from testbed.ue.api.config import EndpointConfig
from testbed.ue.api.schema import ApiError, ChatRequest, CompletionRequest, RequestLimits
from testbed.ue.prompts import Prompter
from tests.support.endpoints import MODEL, Site, endpoint, words

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CONFIG = EndpointConfig(window=4)
WORK_S = 1.0
"""CPU time that the process may take between two turns of the event loop; without bounds each of these took several
seconds. Time on the clock would measure the machine's other load as well."""


def ask(site: Site, path: str, body: bytes | None, **headers: str) -> tuple[int, Any]:
    """The answer to a request. A server that refuses a body before it has read it resets the connection, which may
    strike while the body is sent; then it is asked again.
    """
    headers = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    for attempt in range(5):
        web = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=60)
        try:
            web.request("GET" if body is None else "POST", path, body, headers)
            answer = web.getresponse()
            return answer.status, json.loads(answer.read())
        except ConnectionError:
            if attempt == 4:
                raise
        finally:
            web.close()
    raise AssertionError


async def stall(site: Site, path: str, body: bytes) -> tuple[float, int, Any]:
    """Most CPU time between two turns of the event loop while a request is answered, in seconds; and the answer.

    That of all threads counts, since one of them may hold the interpreter's lock.
    """
    asking = asyncio.create_task(asyncio.to_thread(ask, site, path, body))
    longest, last_s = 0.0, time.process_time()
    while not asking.done():
        await asyncio.sleep(0.002)
        now_s = time.process_time()
        longest, last_s = max(longest, now_s - last_s), now_s
    return longest, *asking.result()


# ---------------------------------------------------------------- requests that are large

LARGE: list[tuple[str, bytes, int, str]] = [
    (COMPLETIONS, b'{"prompt": "%s"}' % (b"w1 " * 340_000), 400, "exceed the context"),
    (COMPLETIONS, b'{"prompt": [%s1]}' % (b"1," * 500_000), 400, "exceed the context"),
    (COMPLETIONS, b'{"prompt": [%s1]}' % (b"1.5," * 250_000), 400, "prompt"),
    (COMPLETIONS, b'{"prompt": [%s[]]}' % (b"[]," * 340_000), 413, "brackets"),
    (COMPLETIONS, b'{"prompt": "w1", "tools": [%s{}]}' % (b"[1]," * 250_000), 413, "brackets"),
    (COMPLETIONS, b'{"prompt": "w1", "stop": [%s"a"]}' % (b'"abcd",' * 140_000), 400, "at most 4"),
    (COMPLETIONS, b'{"prompt": "w1", "stop": "%s"}' % (b"a" * 257), 400, "256 characters"),
    (COMPLETIONS, b'{"prompt": "w1", "model": "%s"}' % (b"a" * 10**6), 404, "aaa...aaa"),
    (CHAT, b'{"messages": [%s]}' % b",".join([b'{"role":"user","content":""}'] * 5000), 400, "at most 4096"),
    (CHAT, b'{"messages": [%s]}' % b",".join([b'{"role":"x","content":3}'] * 15_000), 400, "messages.0.role"),
    (CHAT, b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"w1 " * 340_000), 400, "exceed the context"),
    (COMPLETIONS, b'{"prompt": "w1"}' + b" " * 2**20, 413, "bytes"),
    (COMPLETIONS, b"{%s}" % b",".join(b'"k%d":1' % i for i in range(80_000)), 413, "32768 keys"),
    (COMPLETIONS, b"{%s}" % b",".join(b'"k%d" :1' % i for i in range(80_000)), 413, "32768 keys"),
    (COMPLETIONS, b'{"prompt": ' + b"[" * 20_000, 400, ""),
    (COMPLETIONS, b'{"prompt": "w1", "seed": %s}' % (b"9" * 10**5), 400, ""),
]


async def test_large_requests_do_not_stall_the_event_loop(tmp_path: Path) -> None:
    async with endpoint(tmp_path, CONFIG) as site:
        for path, body, status, words in LARGE:
            longest_s, got, document = await stall(site, path, body)
            if longest_s >= WORK_S:  # threads that other tests have left count, too
                longest_s, got, document = await stall(site, path, body)
            message = document["error"]["message"]
            assert (got, longest_s < WORK_S) == (status, True), (body[:60], got, longest_s, message[:200])
            assert words.replace("aaa...aaa", "...") in message and len(message) < 500
            if words == "exceed the context":
                assert document["error"]["code"] == "context_length_exceeded"


def test_ids_are_compared_with_the_vocabulary_once(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(50_000)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    request, prompter = CompletionRequest(prompt=[7] * 2000), Prompter(tmp_path)
    begun_s = time.thread_time()
    (order,) = request.orders(prompter, RequestLimits(16, 0.0, 4096))
    assert order.prompt == [7] * 2000
    assert time.thread_time() - begun_s < 2


@pytest.mark.parametrize("chat", [False, True])
def test_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chat: bool
) -> None:
    """Megabytes of text were tokenized first, which took seconds with a large vocabulary."""
    prompter, text = Prompter(words(tmp_path)), "w1 " * 340_000
    for name in ("raw", "conversation"):
        monkeypatch.setattr(Prompter, name, lambda *_: pytest.fail("it was tokenized"))
    request = ChatRequest(messages=[{"role": "user", "content": text}]) if chat else CompletionRequest(prompt=text)
    with pytest.raises(ApiError) as caught:
        request.orders(prompter, RequestLimits(16, 0.0, 4096))
    assert caught.value.body["error"]["code"] == "context_length_exceeded"


async def test_a_prompt_is_tokenized_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, free = threading.Event(), threading.Event()
    raw = Prompter.raw

    def slow(self: Prompter, prompt: str) -> list[int]:
        begun.set()
        assert free.wait(30)
        return raw(self, prompt)

    monkeypatch.setattr(Prompter, "raw", slow)
    async with endpoint(tmp_path, CONFIG) as site:
        asking = asyncio.create_task(site.client.completions.create(model=MODEL, prompt="w1", max_tokens=2))
        assert await asyncio.to_thread(begun.wait, 30)
        assert [m.id async for m in site.client.models.list()] == [MODEL]
        free.set()
        assert (await asking).choices[0].finish_reason == "length"


async def test_brackets_of_a_programs_text_are_taken(tmp_path: Path) -> None:
    async with endpoint(tmp_path, CONFIG) as site:
        prompt = "w1[" * (MOST_BRACKETS - 100)
        status, _ = await asyncio.to_thread(ask, site, COMPLETIONS, json.dumps({"prompt": prompt[:90_000]}).encode())
        assert status == 200


# ---------------------------------------------------------------- values that are extreme

EXTREME: list[tuple[dict[str, Any], str | None]] = [
    *(({"top_k": k}, "top_k") for k in (2**70, 2**31, -2, -(2**70))),
    *(({"seed": s}, None) for s in (2**70, -(2**70), 10**4000)),
    *(({"max_tokens": n}, "max_tokens") for n in (2**70, 10**4000, 0, -(2**70))),
    *(({"temperature": t}, "temperature") for t in (float("nan"), float("inf"), 1e308, 2**70)),
    *(({"temperature": t}, None) for t in (-1e308, 5e-324, 1e6)),
    *(({"top_p": p}, None) for p in (5e-324, float("nan"), 1e308, 0.0)),
    ({"temperature": 10**400}, "temperature"),
    *(({"prompt": [i]}, "prompt") for i in (2**70, -(2**70), -1, 64)),
    ({"prompt": "\ud800"}, None),
    ({"stop": "\ud800"}, "stop"),
    ({"stop": ["a", "\udfff"]}, "stop"),
    ({"model": "\ud800"}, "model"),
    ({"tool_choice": "\ud800"}, "tool_choice"),
    ({"suffix": {"\ud800": 1}}, "suffix"),
    ({"stream_options": {"include_usage": "\ud800"}}, "stream_options.include_usage"),
    ({"\ud800": "\ud800"}, None),
]


async def test_extreme_values_are_answered_or_refused(tmp_path: Path) -> None:
    async with endpoint(tmp_path, CONFIG) as site:
        for options, param in EXTREME:
            body = json.dumps({"prompt": "w1", "max_tokens": 2, **options}).encode()
            status, document = await asyncio.to_thread(ask, site, COMPLETIONS, body)
            assert status in ((400, 404) if param else (200, 400)), (options, document)
            if status != 200:
                assert document["error"]["type"] == "invalid_request_error" and document["error"]["param"] == param
        for content in ("\ud800", [{"type": "text", "text": "\ud800"}], [{"type": "\ud800"}]):
            body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
            assert (await asyncio.to_thread(ask, site, CHAT, body))[0] == 400
        assert (await asyncio.to_thread(ask, site, "/v1/models/%ED%A0%80", None))[0] == 404


# ---------------------------------------------------------------- other sites


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 403),  # a form
        ({"host": "localhost:1", "origin": "http://localhost:1", "sec_fetch_site": "same-origin"}, 200),
    ],
)
async def test_web_sites_cannot_use_the_endpoint(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async with endpoint(tmp_path, CONFIG) as site:
        body = b'{"prompt": "w1", "max_tokens": 1}'
        got, document = await asyncio.to_thread(ask, site, COMPLETIONS, body, **headers)
        assert got == status
        if status != 200:
            assert document["error"]["type"] == "invalid_request_error"


async def test_with_a_key_any_host_may_be_named_and_bodies_of_others_are_not_read(tmp_path: Path) -> None:
    async with endpoint(tmp_path, CONFIG, token="s3cret") as site:
        key = {"authorization": "Bearer s3cret"}
        assert (await asyncio.to_thread(ask, site, "/v1/models", None, host="edge.example", **key))[0] == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
        writer.write(f"POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n".encode())
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 401")
        writer.close()


async def test_silent_connections_do_not_shut_out_the_owner_of_the_key(tmp_path: Path) -> None:
    async with endpoint(tmp_path, CONFIG, token="s3cret") as site:
        port = int(site.url.rpartition(":")[2])
        silent = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(720)]
        assert [m.id async for m in site.client.models.list()] == [MODEL]
        for writer in silent:
            writer.close()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_health_waits_for_no_body(tmp_path: Path, method: str) -> None:
    """Strangers may ask for it: with bodies that never end they would keep all connections busy."""
    async with endpoint(tmp_path, CONFIG, token="s3cret") as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
        writer.write(f"{method} /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{{".encode())
        status = int((await asyncio.wait_for(reader.readline(), 20)).split()[1])
        assert status == (200 if method == "GET" else 405)
        writer.close()
