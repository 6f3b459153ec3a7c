"""A controller in another process of the machine decides what a real base station hints; the live view shows it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.bs.control.client import ControlledStation
from testbed.bs.control.messages import Decided, Decisions, Event, RoundSeen
from testbed.channel.link import ZmqLink
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station
from testbed.protocols import protocol
from testbed.tasks import cancel
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.pace import ConstantPace
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.hinted import Hinted
from testbed.ue.windows.uploads import Uploads
from tests.support.browser import expect, page

NAME, VOCAB, WAIT_MS = b"ue-0", 512, 60_000


async def decode(address: str) -> None:
    """A UE that follows hints."""
    client = Client(ZmqLink(address, NAME), WallClock(), 1, 60.0)
    try:
        await client.connect("", VOCAB)
        session = DecodingSession(
            client, SyntheticDrafter(vocab_size=VOCAB, alpha=0.7), protocol("sh"), Hinted(FixedWindow(8)),
            pace=ConstantPace(WallClock(), 0.01), uploads=Uploads(protocol("sh"), hinted=True),
        )  # fmt: skip
        await session.decode([3, 1, 4, 1, 5], 3000, ())
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def decided(directory: Path) -> AsyncIterator[tuple[str, list[Event]]]:
    """The live view of a base station whose controller hints windows of 3 tokens under FH, and what that is told."""
    told: list[Event] = []

    def tell(event: Event) -> None:
        told.append(event)
        bs.decide(Decisions({event.ue: Decided(3, "fh", weight=2.5)}))

    path = directory / "controller"
    config = ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*", monitor="0", controller=str(path))
    with base_station(config) as ready:
        bs = await ControlledStation.connect(path, tell)
        running = [asyncio.create_task(bs.run()), asyncio.create_task(decode(ready["bind"]))]
        try:
            yield ready["monitor"], told
            assert not [task.exception() for task in running if task.done()]
        finally:
            await cancel(*running)
            bs.close()


async def after_rounds(view: str, least: int) -> dict[str, Any]:
    """The row of the only session in the first update with more rounds than that."""
    async with httpx.AsyncClient(base_url=view, timeout=60) as client, client.stream("GET", "/events") as stream:
        columns: list[str] = []
        async for line in stream.aiter_lines():
            if not line.startswith("data: "):
                continue
            update = json.loads(line.removeprefix("data: "))
            columns = update["columns"]["rows"] if "columns" in update else columns
            for fields in update.get("rows", []):
                row = dict(zip(columns, fields, strict=True))
                if row["rounds"] > least:
                    return row
    raise AssertionError("the live view ended")


async def test_decisions_reach_the_ue_and_the_live_view(tmp_path: Path) -> None:
    async with decided(tmp_path) as (view, told):
        row = await asyncio.wait_for(after_rounds(view, 20), WAIT_MS / 1e3)
    assert (row["hint"], row["hint_protocol"], row["weight"]) == (3, "fh", 2.5)
    assert (row["window"], row["protocol"]) == (3, "fh")  # the UE's own would be 8 tokens under SH
    seen = [one for one in told if isinstance(one, RoundSeen)]
    assert seen[0].drafted == 8 and seen[20].drafted == 3 and {one.ue for one in seen} == {NAME}


@pytest.mark.slow
async def test_a_browser_shows_what_was_decided(tmp_path: Path) -> None:
    async with (
        decided(tmp_path) as (view, _),
        page(view, viewport={"width": 1280, "height": 900}) as (shown, wrong),
    ):
        row = shown.locator("#ues tbody tr")
        await expect(row.locator('td[data-label="Protocol"]')).to_have_text("fh (hint fh)", timeout=WAIT_MS)
        await expect(row.locator('td[data-label="Window"]')).to_have_text("3 (hint 3)", timeout=WAIT_MS)
        await expect(row.locator('td[data-label="Channel"]')).to_have_text("not known · weight 2.5", timeout=WAIT_MS)
        assert wrong == []
