"""Request bodies that are too large, too slow or endless."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from testbed.ue.api import bodies, serve
from testbed.ue.api.bodies import MOST_BYTES
from testbed.ue.api.config import EndpointConfig
from tests.support.endpoints import Site, endpoint, until

WAIT_S = 30.0


class Raw:
    """A connection to an endpoint, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, site: Site) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2])))

    async def send(self, data: bytes) -> bool:
        """Whether the connection was accepted."""
        try:
            self._writer.write(data)
            await asyncio.wait_for(self._writer.drain(), WAIT_S)
        except ConnectionError:
            return False
        return not self._writer.is_closing()

    async def answer(self) -> tuple[int, Any]:
        """Status and document of the answer; the connection ends after it."""
        try:
            text = (await asyncio.wait_for(self._reader.read(), WAIT_S)).decode()
        except ConnectionError:  # the answer was lost as the connection was cut
            return 0, {}
        finally:
            self._writer.close()
        head, _, body = text.partition("\r\n\r\n")
        return int(head.split()[1]), json.loads(body) if body.startswith("{") else body


def post(*headers: str) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def test_a_body_that_says_it_is_too_large_is_not_read(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig()) as site:
        for length in (str(MOST_BYTES + 1), "9" * 400):
            raw = await Raw.to(site)
            await raw.send(post(f"content-length: {length}"))
            status, document = await raw.answer()
            assert status == 413 if len(length) < 20 else status in (400, 413)
            if status == 413:
                assert document["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("framing", ["content-length: 3145728", "transfer-encoding: chunked"])
async def test_a_client_that_sends_all_of_a_large_body_gets_the_answer(tmp_path: Path, framing: str) -> None:
    async with endpoint(tmp_path, EndpointConfig()) as site:
        for _ in range(10):
            raw = await Raw.to(site)
            body = b" " * 3 * 2**20
            await raw.send(post(framing) + (b"300000\r\n" + body + b"\r\n0\r\n\r\n" if "chunked" in framing else body))
            assert (await raw.answer())[0] == 413


async def test_a_body_without_an_end_is_cut_off(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig()) as site:
        raw, sent = await Raw.to(site), 0
        await raw.send(post("transfer-encoding: chunked"))
        while sent < 50 * MOST_BYTES and await raw.send(b"10000\r\n" + b"x" * 2**16 + b"\r\n"):
            sent += 2**16
        assert MOST_BYTES <= sent < 20 * MOST_BYTES
        assert (await raw.answer())[0] in (0, 413)
        good = await site.client.completions.create(model="words", prompt="w1", max_tokens=2, temperature=0)
        assert good.choices[0].finish_reason == "length"


async def test_a_body_that_does_not_come_is_waited_for_no_longer_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies.BoundedBodies.__init__, "__defaults__", (MOST_BYTES, 0.3))
    async with endpoint(tmp_path, EndpointConfig()) as site:
        raw = await Raw.to(site)
        await raw.send(post("content-length: 100") + b"{")
        status, document = await raw.answer()
        assert (status, document["error"]["code"]) == (408, "request_timeout")


async def test_headers_without_an_end_are_cut_off(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig()) as site:
        raw, sent = await Raw.to(site), 0
        await raw.send(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n")
        while sent < 20_000_000 and await raw.send(b"x-more: " + b"y" * 8000 + b"\r\n"):
            sent += 8010
            await asyncio.sleep(0)
        assert sent < 10_000_000
        assert (await raw.answer())[0] in (0, 400)


async def test_a_client_that_leaves_within_its_body_leaves_nothing(tmp_path: Path) -> None:
    async with endpoint(tmp_path, EndpointConfig()) as site:
        raw = await Raw.to(site)
        await raw.send(post("content-length: 100") + b"{")
        raw._writer.close()
        await until(lambda: site.at_rest)
        assert (await site.client.models.list()).data[0].id == "words"


async def test_stopping_answers_a_client_whose_body_has_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log got a traceback, and the client nothing."""
    monkeypatch.setattr(serve, "GRACE_S", 1)
    async with endpoint(tmp_path, EndpointConfig()) as site:
        raw = await Raw.to(site)
        await raw.send(post("content-length: 100") + b"{")
        assert (await site.client.models.list()).data[0].id == "words"
    status, document = await raw.answer()
    assert (status, document["error"]["message"]) == (503, "the endpoint is stopping")
    assert "Exception" not in caplog.text and "Traceback" not in caplog.text
