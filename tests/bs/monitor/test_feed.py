"""Updates of the live view: made for all viewers at once, only while somebody looks, and never waited for."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from testbed.bs.monitor.client import CLOSING, LOADING, SERVING
from testbed.bs.monitor.feed import (
    BEHIND,
    COLUMNS,
    MOST_TEXTS,
    MOST_VIEWERS,
    SHARE,
    Feed,
    Texts,
    TooManyViewers,
    Viewer,
    event,
)
from testbed.bs.observer import RoundNote
from tests.support.monitor import changed, connected, serving


async def said(viewer: Viewer) -> dict[str, Any]:
    update = await asyncio.wait_for(viewer.next(), 10)
    assert update is not None and update.startswith(b"data: ") and update.endswith(b"\n\n") and update.count(b"\n") == 2
    document: dict[str, Any] = json.loads(update[6:])
    return document


async def test_a_viewer_is_shown_the_whole_first_and_then_the_news() -> None:
    async with serving() as (served, _, station):
        feed = Feed(station)
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
    assert set(news) == {"now_s", "sessions", "rows", "rounds", "passes", "history", "history_now_s"}
    row = dict(zip(whole["columns"]["rows"], news["rows"][0], strict=True))
    assert row["rounds"] == 2 and row["csi"][:3] == [20.0, 50.0, 30.0]
    first_round = dict(zip(names, late["rounds"][0], strict=True))
    assert first_round["link_s"] is None and first_round["drafted"] == 4


async def test_nothing_is_asked_while_nobody_looks() -> None:
    async with serving() as (served, _, station):
        feed = Feed(station)
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
    async with serving() as (served, _, station):
        feed = Feed(station)
        with feed.viewer() as first, feed.viewer() as second:
            for _ in range(3):
                await feed.update()
                assert await said(first) == await said(second)
        assert len(served.looks) == 3


async def test_updates_come_at_most_ten_times_a_second() -> None:
    async with serving() as (served, _, station):
        feed = Feed(station)
        running = asyncio.create_task(feed.run())
        with feed.viewer() as viewer:
            for _ in range(5):
                await said(viewer)
        running.cancel()
    assert served.looks[-1] - served.looks[0] > 0.09 * (len(served.looks) - 1)


async def test_updates_become_fewer_where_they_take_the_base_station_long() -> None:
    async with serving() as (served, _, station):
        feed = Feed(station)
        served.delay_s = 0.005
        running = asyncio.create_task(feed.run())
        with feed.viewer() as viewer:
            for _ in range(3):
                await said(viewer)
        running.cancel()
    assert min(b - a for a, b in itertools.pairwise(served.looks)) > 0.9 * served.delay_s / SHARE


async def test_who_does_not_read_is_dropped_and_the_others_are_not() -> None:
    async with serving() as (_, _, station):
        feed = Feed(station)
        with feed.viewer() as slow, feed.viewer() as quick:
            for _ in range(BEHIND + 1):
                await feed.update()
                await said(quick)
            assert await slow.next() is None
            await feed.update()
            assert (await said(quick))["now_s"] == 5.0


async def test_there_are_only_so_many_viewers() -> None:
    async with connected() as (_, station):
        feed = Feed(station)
        viewers = [feed.viewer() for _ in range(MOST_VIEWERS)]
        for viewer in viewers:
            viewer.__enter__()
        with pytest.raises(TooManyViewers):
            feed.viewer().__enter__()
        for viewer in viewers:
            viewer.__exit__(None, None, None)
        with feed.viewer():
            pass


async def test_a_base_station_that_loads_or_closes_says_so() -> None:
    async with serving() as (_, monitor, station), connected() as (_, loading):
        feed = Feed(loading)
        with feed.viewer() as viewer:
            await feed.update()
            assert (await said(viewer))["about"]["state"] == LOADING
        feed = Feed(station)
        with feed.viewer() as viewer:
            await feed.update()
            assert "columns" in await said(viewer)
            await monitor.detach()
            await changed(station, SERVING, CLOSING)
            await feed.update()
            assert (await said(viewer))["about"]["state"] == CLOSING
            feed.close()
            assert await viewer.next() is None


def bytewise() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def note(session: int, tokens: list[int]) -> RoundNote:
    return RoundNote(
        1, 1, 0, session, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 1, 1, 0, 1, 0, 0, 0.0, tokens, "d" * len(tokens)
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


def test_where_a_tokenizer_fails_ids_are_shown() -> None:
    tokenizer = Tokenizer(models.WordLevel({" ": 0, "a": 1}, unk_token="a"))
    tokenizer.decoder = decoders.Strip(content=" ", left=1, right=1)
    texts = Texts(tokenizer)
    assert texts.spell(note(1, [1])).tokens == ["a"]
    for session in (1, 2):
        assert texts.spell(note(session, [1, 0])).tokens == [1, 0]
    assert texts.spell(note(2, [1])).tokens == ["a"]


def test_without_a_tokenizer_ids_stay_ids_and_what_is_held_is_bounded() -> None:
    assert Texts(None).spell(note(1, [5, 6])).tokens == [5, 6]
    texts = Texts(bytewise())
    for session in range(MOST_TEXTS + 20):
        texts.spell(note(session, [195]))
    assert len(texts._open) == MOST_TEXTS


async def test_a_viewer_reads_text_where_there_is_a_tokenizer_and_ids_where_its_file_is_none(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.json", tmp_path / "broken.json"
    bytewise().save(str(whole))
    broken.write_text("{}")
    for path, kind in ((whole, str), (broken, int)):
        async with serving(tokenizer=str(path)) as (served, _, station):
            served.session.append(np.array([7, 8, 9], np.int32))
            served.round()
            feed = Feed(station)
            with feed.viewer() as viewer:
                await feed.update()
                update = await said(viewer)
        (tokens,) = [dict(zip(update["columns"]["rounds"], one, strict=True))["tokens"] for one in update["rounds"]]
        assert tokens and all(isinstance(token, kind) for token in tokens), path


def test_numbers_that_json_does_not_know_become_null() -> None:
    assert json.loads(event({"a": float("inf"), "b": [float("nan")]})[6:]) == {"a": None, "b": [None]}
