"""Updates of the live view: made for all viewers at once, only while somebody looks, and never waited for."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from testbed.bs.monitor_feed import (
    BEHIND,
    COLUMNS,
    MOST_TEXTS,
    MOST_VIEWERS,
    SHARE,
    Crowded,
    Feed,
    Texts,
    Viewer,
    event,
)
from testbed.bs.monitor_source import CLOSING, LOADING, SERVING, Source, Station
from testbed.bs.observer import Look, RoundNote
from testbed.bs.recent import Recent
from testbed.bs.sessions import SessionTable
from tests.bs.test_recent import one, opened, told


class Served:
    """A base station's recent past, and when it was looked at."""

    def __init__(self, **how: Any) -> None:
        self.table = SessionTable()
        self.recent = Recent(self.table, text=True)
        self.session = opened(self.table, 0)
        self.looks: list[float] = []
        self.delay_s = 0.0
        self.station = Station()
        self.station.attach(
            Source(
                loop=asyncio.get_running_loop(),
                look=self.look,
                count=lambda: ({}, self.recent.tally()),
                about={"model": "m"},
                text=True,
                **how,
            )
        )

    def look(self, rounds: int, passes: int) -> Look:
        self.looks.append(asyncio.get_running_loop().time())
        time.sleep(self.delay_s)
        return self.recent.look(rounds, passes, 5.0)

    def round(self) -> None:
        self.recent.round(self.session, one(), told())


async def said(viewer: Viewer) -> dict[str, Any]:
    update = await asyncio.wait_for(viewer.next(), 10)
    assert update is not None and update.startswith(b"data: ") and update.endswith(b"\n\n") and update.count(b"\n") == 2
    document: dict[str, Any] = json.loads(update[6:])
    return document


async def test_a_viewer_is_shown_the_whole_first_and_then_the_news() -> None:
    served = Served()
    feed = Feed(served.station)
    served.round()
    with feed.viewer() as first:
        await feed.update()
        whole = await said(first)
        served.round()
        with feed.viewer() as second:
            await feed.update()
            news, late = await said(first), await said(second)
            await feed.update()
            nothing = await said(first)
    names = whole["columns"]["rounds"]
    assert whole["columns"] == {key: list(value) for key, value in COLUMNS.items()}
    assert whole["about"]["state"] == SERVING and whole["about"]["model"] == "m"
    assert [len(update["rounds"]) for update in (whole, news, late, nothing)] == [1, 1, 2, 0]
    assert [dict(zip(names, entry, strict=True))["number"] for entry in late["rounds"]] == [1, 2]
    assert set(news) == {"now_s", "sessions", "rows", "rounds", "passes"}
    row = dict(zip(whole["columns"]["rows"], news["rows"][0], strict=True))
    assert row["rounds"] == 2 and row["csi"][:3] == [20.0, 50.0, 30.0]


async def test_nothing_is_asked_while_nobody_looks() -> None:
    served = Served()
    feed = Feed(served.station)
    running = asyncio.create_task(feed.run())
    await asyncio.sleep(0.3)
    assert served.looks == []
    with feed.viewer() as viewer:
        await said(viewer)
    await asyncio.sleep(0.2)
    before = len(served.looks)
    await asyncio.sleep(0.3)
    assert len(served.looks) == before
    running.cancel()


async def test_one_look_serves_all_viewers() -> None:
    served = Served()
    feed = Feed(served.station)
    with feed.viewer() as first, feed.viewer() as second:
        for _ in range(3):
            await feed.update()
            assert await said(first) == await said(second)
    assert len(served.looks) == 3


async def test_updates_come_at_most_ten_times_a_second() -> None:
    served = Served()
    feed = Feed(served.station)
    running = asyncio.create_task(feed.run())
    with feed.viewer() as viewer:
        for _ in range(5):
            await said(viewer)
    running.cancel()
    assert min(b - a for a, b in itertools.pairwise(served.looks)) > 0.09


async def test_updates_become_fewer_where_they_take_long() -> None:
    served = Served()
    feed = Feed(served.station)
    served.delay_s = 0.03
    running = asyncio.create_task(feed.run())
    with feed.viewer() as viewer:
        for _ in range(3):
            await said(viewer)
    running.cancel()
    assert min(b - a for a, b in itertools.pairwise(served.looks)) > 0.03 / SHARE


async def test_who_does_not_read_is_dropped_and_the_others_are_not() -> None:
    served = Served()
    feed = Feed(served.station)
    with feed.viewer() as slow, feed.viewer() as quick:
        for _ in range(BEHIND + 1):
            await feed.update()
            await said(quick)
        assert await slow.next() is None
        await feed.update()
        assert (await said(quick))["now_s"] == 5.0


async def test_there_are_only_so_many_viewers() -> None:
    feed = Feed(Station())
    viewers = [feed.viewer() for _ in range(MOST_VIEWERS)]
    for viewer in viewers:
        viewer.__enter__()
    with pytest.raises(Crowded):
        feed.viewer().__enter__()
    for viewer in viewers:
        viewer.__exit__(None, None, None)
    with feed.viewer():
        pass


async def test_a_base_station_that_loads_or_closes_says_so() -> None:
    served, station = Served(), Station()
    feed = Feed(station)
    with feed.viewer() as viewer:
        await feed.update()
        assert (await said(viewer))["about"]["state"] == LOADING
        assert served.station.source is not None
        station.attach(served.station.source)
        await feed.update()
        assert "columns" in await said(viewer)
        station.detach()
        await feed.update()
        assert (await said(viewer))["about"]["state"] == CLOSING
        feed.close()
        assert await viewer.next() is None


async def test_a_server_that_closes_keeps_nobody_waiting() -> None:
    """The server's loop is another thread's, and is stopped with a question open."""
    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    station = Station()
    held = threading.Event()
    source = Source(loop=other, look=lambda *_: held.wait(20), count=dict, about={})  # type: ignore[arg-type,return-value]
    station.attach(source)
    asking = asyncio.create_task(station.ask(lambda source: source.look(0, 0)))
    await asyncio.sleep(0.05)
    station.detach()
    assert await asyncio.wait_for(asking, 4) is None
    held.set()
    other.call_soon_threadsafe(other.stop)
    await asyncio.to_thread(thread.join)
    other.close()
    station.attach(source)
    assert await station.ask(lambda source: source.look(0, 0)) is None  # its loop is closed


async def test_a_question_that_fails_is_answered_by_nothing(caplog: pytest.LogCaptureFixture) -> None:
    served = Served()
    assert await served.station.ask(lambda source: 1 / 0) is None
    assert "failed" in caplog.text


def bytewise() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def note(session: int, tokens: list[int]) -> RoundNote:
    return RoundNote(
        1, 1, 0, session, 0, 0.0, 0.0, 0.0, None, 0.0, 0.0, 0.0, 0.0, 1, 1, 1, 0, 1, tokens, "d" * len(tokens)
    )


def test_text_of_many_sessions_is_pieced_together_character_by_character() -> None:
    tokenizer = bytewise()
    texts = Texts(tokenizer)
    said = {1: "naïve – 3 × 4 = 12 €", 2: "<script>alert('Ünderstood')</script>"}
    left = {session: tokenizer.encode(text).ids for session, text in said.items()}
    found = {1: "", 2: ""}
    while any(left.values()):
        for session, ids in left.items():
            taken, left[session] = ids[:3], ids[3:]
            spelled = texts.spell(note(session, taken)).tokens
            assert len(spelled) == len(taken)
            found[session] += "".join(map(str, spelled))
    assert found == said


def test_without_a_tokenizer_ids_stay_ids_and_what_is_held_is_bounded() -> None:
    assert Texts(None).spell(note(1, [5, 6])).tokens == [5, 6]
    texts = Texts(bytewise())
    for session in range(MOST_TEXTS + 20):
        texts.spell(note(session, [195]))
    assert len(texts._open) == MOST_TEXTS


def test_numbers_that_json_does_not_know_become_null() -> None:
    assert json.loads(event({"a": float("inf"), "b": [float("nan")]})[6:]) == {"a": None, "b": [None]}
