"""The live view of a real base station process, with rounds of real UEs, in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from testbed.channel.csi import Csi
from testbed.channel.link import ZmqLink, new_identity
from testbed.channel.link_model import Direction, constant
from testbed.channel.proxy import Proxy
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station
from testbed.protocols import protocol
from testbed.protocols.methods import Ahead
from testbed.synthetic import next_token
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.pace import ConstantPace
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.stream_choice import StreamChoice
from tests.support.browser import expect, page

if TYPE_CHECKING:
    from playwright.async_api import Page

VOCAB = 512
PROMPT = [3, 1, 4, 1, 5]
SERVE = {"engine": "synthetic", "bind": "tcp://127.0.0.1:*"}
CSI = Csi(20.0, 50.0, 30.0, per_up=0.01)
WAIT_MS = 60_000
SAID = re.compile(r"([1-9]\d*) of (\d+) used, ([1-9]\d*) void · (\d+\.\d) s hidden")


async def decode(
    address: str, kind: str, tokens: int, token_s: float = 0.0, speed_tps: float | None = None, lookahead: Ahead = 0
) -> RequestRecord:
    """A UE's one request, drafted at so many seconds a token."""
    client = Client(ZmqLink(address, new_identity()), WallClock(), 1, 60.0)
    try:
        await client.connect("", VOCAB)
        session = DecodingSession(
            client, SyntheticDrafter(vocab_size=VOCAB, alpha=0.7), protocol(kind), FixedWindow(5), csi=lambda: CSI,
            pace=ConstantPace(WallClock(), token_s), speed_tps=speed_tps, lookahead=lookahead,
            streams=StreamChoice(5, alone=False),
        )  # fmt: skip
        return await session.decode(PROMPT, tokens, ())
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def far(address: str) -> AsyncIterator[str]:
    """The base station behind a link of 100 ms."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    proxy = Proxy((host, int(port)), lambda _: (Direction(constant(delay_s=0.05)), Direction(constant(delay_s=0.05))))
    try:
        yield f"tcp://127.0.0.1:{await proxy.start('127.0.0.1', 0)}"
    finally:
        await proxy.close()


async def test_metrics_are_what_the_ues_recorded_and_updates_come_for_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o600)
    with base_station(ServeConfig(**SERVE, monitor="0", monitor_token_file=str(tmp_path / "token"))) as ready:
        records = [await decode(ready["bind"], kind, 60) for kind in ("greedy", "sh")]
        async with httpx.AsyncClient(base_url=ready["monitor"]) as client:
            assert (await client.get("/readyz")).text == "serving\n"
            assert (await client.get("/metrics")).status_code == (await client.get("/events")).status_code == 401
            client.headers["authorization"] = "Bearer s3cret"
            metrics = (await client.get("/metrics")).text
            async with client.stream("GET", "/events") as stream:
                update = json.loads((await anext(stream.aiter_lines())).removeprefix("data: "))
    found = {s.name: s.value for f in text_string_to_metric_families(metrics) for s in f.samples if not s.labels}
    rounds = [r for record in records for r in record.rounds]
    assert found["testbed_rounds_total"] == len(rounds) == len(update["rounds"])
    assert found["testbed_drafted_tokens_total"] == sum(r.drafted for r in rounds)
    assert found["testbed_accepted_tokens_total"] == sum(r.accepted for r in rounds)
    assert found["testbed_committed_tokens_total"] == sum(r.committed for r in rounds) == 120
    assert not any(dict(zip(update["columns"]["rounds"], r, strict=True))["tokens"] for r in update["rounds"])


@pytest.mark.slow
async def test_a_browser_shows_rounds_as_they_come_and_what_becomes_of_the_base_station(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o600)
    config = ServeConfig(**SERVE, monitor_text=True, monitor_token_file=str(tmp_path / "token"), monitor="localhost:0")
    with contextlib.ExitStack() as first:
        ready = first.enter_context(base_station(config))
        bs, view = ready["bind"], ready["monitor"]
        async with page(view, viewport={"width": 1280, "height": 900}) as (shown, wrong):
            await gives_token(shown)
            wrong.clear()  # Chromium's word on the refusals
            await expect(shown.locator("#empty")).to_be_visible()
            ues = [
                asyncio.create_task(decode(bs, "greedy", 3000, 0.02, 1.0)),
                asyncio.create_task(decode(bs, "fh", 3000, 0.02, 10_000.0)),
            ]
            await shows_ues(shown)
            await shows_one(shown)
            await fits(shown)
            assert wrong == []

            for ue in ues:
                ue.cancel()
            await asyncio.gather(*ues, return_exceptions=True)
            await expect(shown.locator("#ues tbody tr").first).to_contain_text("ended", timeout=WAIT_MS)
            first.close()
            await expect(shown.locator("#status")).to_contain_text("trying again", timeout=WAIT_MS)
            with base_station(msgspec.structs.replace(config, monitor=f"localhost:{urlsplit(view).port}")):
                await expect(shown.locator("#status")).to_have_text("serving", timeout=WAIT_MS)
                await expect(shown.locator("#empty")).to_be_visible(timeout=WAIT_MS)


@pytest.mark.slow
async def test_a_browser_shows_what_was_drafted_ahead() -> None:
    """One UE waits for verdicts, one looks ahead, and one is in a stream; all have links of 100 ms."""
    with base_station(ServeConfig(**SERVE, monitor="0")) as ready:
        async with (
            far(ready["bind"]) as address,
            page(ready["monitor"], viewport={"width": 1280, "height": 900}) as (shown, wrong),
        ):
            ues = [
                asyncio.create_task(decode(address, kind, 3000, 0.01, lookahead=lookahead))
                for kind, lookahead in (("coupled", 0), ("fh", 1), ("greedy", "stream"))
            ]
            rows = shown.locator("#ues tbody tr")
            await expect(rows).to_have_count(3, timeout=WAIT_MS)
            for kind in ("fh", "greedy"):
                said = rows.filter(has_text=kind).locator('td[data-label="Ahead"]')
                await expect(said).to_have_text(SAID, timeout=WAIT_MS)
                used, came, void, hidden_s = map(float, SAID.fullmatch(await said.inner_text()).groups())  # type: ignore[union-attr]
                assert 0 < used < came and 0 < void <= came - used and hidden_s > 0
            await expect(rows.filter(has_text="coupled").locator('td[data-label="Ahead"]')).to_have_text("–")
            await expect(shown.locator("#key-overlap")).to_be_visible()
            await rows.filter(has_text="fh").locator("button").click()
            await expect(shown.locator("#parts tr")).to_have_count(8, timeout=WAIT_MS)
            overlaps = [float(text) for text in await shown.locator("#parts tr td:last-child").all_inner_texts()]
            assert len(overlaps) == 8 and min(overlaps) >= 0
            await fits(shown)
            assert wrong == []
            for ue in ues:
                ue.cancel()
            await asyncio.gather(*ues, return_exceptions=True)


async def gives_token(shown: Page) -> None:
    """A wrong token, then the right one."""
    await shown.get_by_label("Token of this base station").fill("wrong")
    await shown.keyboard.press("Enter")
    await expect(shown.get_by_role("alert")).to_contain_text("not the right one", timeout=WAIT_MS)
    await shown.get_by_label("Token of this base station").fill("s3cret")
    await shown.keyboard.press("Enter")
    await expect(shown.locator("#status")).to_have_text("serving", timeout=WAIT_MS)


async def shows_ues(shown: Page) -> None:
    """One keeps its promise, the other cannot."""
    rows = shown.locator("#ues tbody tr")
    await expect(rows).to_have_count(2, timeout=WAIT_MS)
    await expect(rows.filter(has_text="greedy")).to_contain_text("✓", timeout=WAIT_MS)
    await expect(rows.filter(has_text="fh")).to_contain_text("✗ behind", timeout=WAIT_MS)
    await expect(rows.first).to_contain_text("↑20 ↓50 Mbit/s · 30 ms · PER 1/0 %")
    await expect(shown.locator("#n-sessions")).to_have_text("2")
    assert float(await shown.locator("#n-tokens").inner_text()) > 0
    for canvas in ("lanes", "chart-queue", "chart-batch", "chart-time"):
        assert await painted(shown, canvas)


async def shows_one(shown: Page) -> None:
    """The parts of its rounds, and a piece of its output, which is the target's own."""
    await shown.locator("#ues tbody button").first.focus()
    await shown.keyboard.press("Enter")
    await expect(shown.locator("#parts tr")).to_have_count(8, timeout=WAIT_MS)
    said = [int(word) for word in (await shown.locator("#text").inner_text()).split()]
    own = list(PROMPT)
    while len(own) < len(PROMPT) + 3000:
        own.append(next_token(own, VOCAB, 0))
    assert len(said) > 10 and any(own[i : i + len(said)] == said for i in range(len(PROMPT), len(own)))


async def fits(shown: Page) -> None:
    """A narrow screen needs no scrolling sideways, and dark is dark; both with as little motion as may be."""
    await shown.set_viewport_size({"width": 320, "height": 700})
    for scheme, back in (("light", "rgb(244, 246, 248)"), ("dark", "rgb(15, 20, 25)")):
        await shown.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        assert await shown.evaluate("getComputedStyle(document.body).backgroundColor") == back
        assert await shown.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def painted(shown: Page, canvas: str) -> bool:
    """Whether anything is drawn in a canvas."""
    script = """(id) => {
        const canvas = document.getElementById(id);
        return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((x) => x > 0);
    }"""
    return bool(await shown.evaluate(script, canvas))
