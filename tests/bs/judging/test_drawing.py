"""Sampled rounds that take long to decide: the same tokens, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from testbed.bs.judging import acceptance, drawing
from testbed.errors import ProtocolError
from testbed.protocols import protocol
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


async def test_rounds_that_hold_too_much_are_decided_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one round, the others wait, and all of them end."""
    monkeypatch.setattr(drawing, "MOST_VALUES", 0)
    monkeypatch.setattr(drawing, "MOST_HELD", 1)
    async with station() as (bs, address), client(address) as ue:
        found = await asyncio.gather(*(decode(ue, "rejection") for _ in range(4)))
        assert [len(tokens) for tokens in found] == [24] * 4
        assert bs._drawing._held == 0


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
