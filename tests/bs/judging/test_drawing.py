"""Sampled rounds that take long to decide: the same tokens, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from testbed.bs.judging import acceptance, drawing
from testbed.bs.sessions import Round, Session
from testbed.errors import ProtocolError
from testbed.protocols import protocol
from testbed.protocols.base import Window
from testbed.protocols.sampling import Kept, Sampling
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, client, station

PROMPT = [1, 2, 3]


async def decode(ue: Client, kind: str, tokens: int = 24) -> list[int]:
    drafter, sampling = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8), Sampling(1.0, 0, 0.9)
    session = DecodingSession(ue, drafter, protocol(kind), FixedWindow(4), sampling=sampling, seed=7)
    return (await session.decode(PROMPT, tokens, ())).token_ids


@pytest.mark.parametrize("kind", ["rejection", "split"])
async def test_rounds_that_are_set_aside_have_the_same_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for most in (drawing.MOST_VALUES, 0):
        monkeypatch.setattr(drawing, "MOST_VALUES", most)
        async with station() as (_, address), client(address) as ue:
            found.append(await decode(ue, kind))
    assert found[0] == found[1] and len(found[0]) == 24


async def test_others_are_served_while_a_round_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, whole = threading.Event(), threading.Event(), acceptance.drawn

    def held(*arguments: Any) -> Kept:
        begun.set()
        assert go.wait(30)
        return whole(*arguments)

    monkeypatch.setattr(drawing, "MOST_VALUES", 0)
    monkeypatch.setattr(acceptance, "drawn", held)
    async with station() as (_, address), client(address) as one, client(address) as other:
        slow = asyncio.create_task(decode(one, "rejection"))
        try:
            assert await asyncio.to_thread(begun.wait, 30)
            assert len(await decode(other, "greedy")) == 24
            assert not slow.done()
        finally:
            go.set()
        assert len(await slow) == 24


async def test_ues_take_turns_and_no_pass_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A UE with many sampled rounds delays another one's by one of its own; what waits counts as load."""
    go, decided, whole = threading.Event(), list[bytes](), acceptance.drawn

    def held(session: Session, *arguments: Any) -> Kept:
        assert go.wait(30)
        decided.append(session.key[0])
        return whole(session, *arguments)

    async def aside(count: int) -> None:
        while bs.load.windows < count:
            await asyncio.sleep(0.001)

    monkeypatch.setattr(drawing, "MOST_VALUES", 0)
    monkeypatch.setattr(acceptance, "drawn", held)
    async with station() as (bs, address), client(address) as many, client(address) as one, client(address) as other:
        slow = [asyncio.create_task(decode(many, "split")) for _ in range(6)]
        try:
            await asyncio.wait_for(aside(5), 30)  # one is being decided
            slow.append(asyncio.create_task(decode(one, "split")))
            await asyncio.wait_for(aside(6), 30)
            assert bs.load.size_bytes > 6 * 4 * (4 + 1) * VOCAB
            assert len(await decode(other, "greedy")) == 24
            bs._intake.sessions.room.windows_bytes = 6 * 4 * (4 + 1) * VOCAB
            assert "wait for the engine" in (bs._intake.sessions.crowded(bs.load, b"other") or "")
            bs._intake.sessions.room.windows_bytes = 2**30
        finally:
            go.set()
        assert [len(tokens) for tokens in await asyncio.gather(*slow)] == [24] * 7
        assert decided[0] == decided[1] != decided[2] and bs.load == (0, 0)


async def test_rounds_of_closed_sessions_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MOST_VALUES", 0)
    async with station() as (bs, address), client(address) as ue:
        sessions, aside = bs._intake.sessions, bs._drawing
        window = Window(np.zeros(4, np.int32), None, np.ones(4, np.uint16))
        for number in range(3):
            session = sessions.open((b"ue", number), np.ones(3, np.int32), protocol("split"), 0.0, 1, 300)
            session.current = Round(0, window, None, 0.0)
            aside.set_aside([(session, session.current)])
            sessions.close(session.key)
        assert aside.load.windows <= 1
        assert len(await decode(ue, "split")) == 24 and aside.load == (0, 0)


async def test_a_round_that_fails_closes_its_session_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Kept:
        raise RuntimeError("no distribution")

    monkeypatch.setattr(drawing, "MOST_VALUES", 0)
    async with station() as (bs, address), client(address) as one, client(address) as other:
        with monkeypatch.context() as patch:
            patch.setattr(acceptance, "drawn", fails)
            with pytest.raises(ProtocolError, match="internal error: no distribution"):
                await decode(one, "rejection")
        assert bs.metrics()["failed_sessions"] == 1
        assert len(await decode(other, "rejection")) == 24
