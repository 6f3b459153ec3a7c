"""Windows that come ahead of the verdict of the round before them: held, verified after a hit, dropped after a miss."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.pending import Round
from testbed.bs.room import Load
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.errors import LinkTimeout
from testbed.protocols.messages import Busy, Close, Draft, Fault, Message, Open, Opened, Resync, Verdict
from testbed.synthetic import next_token
from testbed.ue.client import Client
from tests.support.stations import VOCAB, client, station

PROMPT = [3, 1, 4]


def target(count: int, prompt: list[int] = PROMPT) -> list[int]:
    """The target's output."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(prompt) :]


class Slow(SyntheticEngine):
    """Takes long enough for a window to come while another one is verified."""

    def compute(self, batch: list[VerifyRequest]) -> list[VerifyResult]:  # type: ignore[override]
        import time

        time.sleep(0.05)
        return super().compute(batch)


async def opened(ue: Client, protocol: str = "greedy", **more: Any) -> int:
    number = ue.new_session()
    fields = {"hidden_size": 4, "threshold": 0.0, **more}
    await ue.send(Open(session=number, protocol=protocol, **fields), {"ids": np.array(PROMPT, np.int32)})
    assert isinstance(await answer(ue, number), Opened)
    return number


async def answer(ue: Client, number: int, wait_s: float = 5.0) -> Message:
    return (await ue.receive(number, wait_s)).message  # type: ignore[no-any-return]


async def silent(ue: Client, number: int) -> bool:
    try:
        await ue.receive(number, 0.3)
    except LinkTimeout:
        return True
    return False


async def draft(ue: Client, number: int, round_: int, base: int, ids: list[int], guess: int | None = None) -> None:
    message = Draft(session=number, round=round_, base_len=base, guess=guess)
    await ue.send(message, {"ids": np.array(ids, np.int32)})


def held(bs: BaseStation) -> tuple[int, int]:
    return tuple(bs._intake.sessions.held)


async def test_a_window_ahead_is_verified_after_a_hit() -> None:
    own = target(8)
    async with station(Slow(vocab_size=VOCAB)) as (bs, address), client(address) as ue:
        number = await opened(ue)
        await draft(ue, number, 0, 3, own[:2])
        await draft(ue, number, 1, 6, own[3:5], guess=own[2])
        first, second = await answer(ue, number), await answer(ue, number)
        assert isinstance(first, Verdict) and (first.round, first.accepted, first.token) == (0, 2, own[2])
        assert isinstance(second, Verdict) and (second.round, second.accepted, second.token) == (1, 2, own[5])
        assert bs.rounds == 2 and held(bs) == (0, 0)


@pytest.mark.parametrize("wrong", ["window", "guess"])
async def test_after_a_miss_it_is_dropped_unverified_and_unanswered(wrong: str) -> None:
    own = target(8)
    ids, guess = ([own[0], (own[1] + 1) % VOCAB], own[2]) if wrong == "window" else (own[:2], (own[2] + 1) % VOCAB)
    async with station(Slow(vocab_size=VOCAB)) as (bs, address), client(address) as ue:
        number = await opened(ue)
        await draft(ue, number, 0, 3, ids)
        await draft(ue, number, 1, 6, own[3:5], guess=guess)
        first = await answer(ue, number)
        assert isinstance(first, Verdict) and first.accepted == (1 if wrong == "window" else 2)
        await draft(ue, number, 1, 6, own[3:5], guess=guess)  # a copy that comes late
        assert await silent(ue, number) and bs.rounds == 1 and held(bs) == (0, 0)
        base = 3 + first.accepted + 1
        await draft(ue, number, 2, base, target(8)[base - 3 : base])
        second = await answer(ue, number)
        assert isinstance(second, Verdict) and (second.round, second.accepted) == (2, 3)
        await draft(ue, number, 1, 6, own[3:5], guess=guess)  # later still
        assert await silent(ue, number) and bs.rounds == 2


async def test_the_verdict_before_is_repeated_after_the_round_that_came_ahead() -> None:
    own = target(8)
    async with station() as (bs, address), client(address) as ue:
        number = await opened(ue)
        await draft(ue, number, 0, 3, own[:2])
        await draft(ue, number, 1, 6, own[3:5], guess=own[2])
        verdicts = [await answer(ue, number) for _ in range(2)]
        await draft(ue, number, 0, 3, own[:2])
        await draft(ue, number, 1, 6, own[3:5], guess=own[2])
        assert [await answer(ue, number) for _ in range(2)] == verdicts
        await draft(ue, number, 2, 9, own[6:8])
        assert isinstance(await answer(ue, number), Verdict)
        await draft(ue, number, 0, 3, own[:2])  # its verdict has arrived, or round 2 would not have come
        assert await silent(ue, number) and bs.rounds == 3


async def test_a_window_ahead_that_overtakes_the_one_before_it_waits_for_it() -> None:
    own = target(8)
    async with station() as (bs, address), client(address) as ue:
        number = await opened(ue)
        await draft(ue, number, 1, 6, own[3:5], guess=own[2])
        await draft(ue, number, 1, 6, own[3:5], guess=own[2])
        assert await silent(ue, number) and held(bs) == (1, 8)
        await draft(ue, number, 0, 3, own[:2])
        verdicts = [await answer(ue, number) for _ in range(2)]
        assert [v.round for v in verdicts if isinstance(v, Verdict)] == [0, 1] and held(bs) == (0, 0)


async def test_a_session_holds_one_and_a_closed_one_none() -> None:
    async with station() as (bs, address), client(address) as ue:
        number = await opened(ue)
        for round_ in (5, 1, 9, 3):
            await draft(ue, number, round_, 10 * round_, [1] * round_, guess=7)
        assert await silent(ue, number) and held(bs) == (1, 36)
        assert bs.load.windows == 1
        await opened(ue)
        await ue.send(Close(session=number))
        assert len(await ue.rtt_s(1)) == 1 and held(bs) == (0, 0) and bs.load == (0, 0)


async def test_beyond_half_of_the_room_it_is_refused_by_its_number() -> None:
    table = SessionTable(pending=2)
    async with station(Slow(vocab_size=VOCAB), sessions=table) as (bs, address), client(address) as ue:
        first, second = await opened(ue), await opened(ue)
        await draft(ue, first, 1, 6, [1], guess=7)
        await draft(ue, second, 1, 6, [1], guess=7)
        busy = await answer(ue, second)
        assert isinstance(busy, Busy) and busy.round == 1 and "at most 1" in busy.reason
        await draft(ue, second, 0, 3, [1])
        assert isinstance(await answer(ue, second), Verdict) and held(bs) == (1, 4)


async def test_what_will_decide_about_it_counts() -> None:
    """Windows of coupled sampling, each of which reads a distribution for each token, passed the bound when they came
    ahead.
    """
    size_bytes = 4 * 3 + 4 * 4 * VOCAB
    table = SessionTable(windows_bytes=3 * size_bytes)
    async with station(sessions=table) as (bs, address), client(address) as ue:
        numbers = [await opened(ue, temperature=1.0, coupled=True, seed=1) for _ in range(3)]
        for number in numbers[:2]:
            await draft(ue, number, 1, 4, [1, 2, 3], guess=5)
            assert await silent(ue, number)
        assert held(bs) == (2, 2 * size_bytes)
        await draft(ue, numbers[2], 1, 4, [1, 2, 3], guess=5)
        busy = await answer(ue, numbers[2])
        assert isinstance(busy, Busy) and busy.round == 1
        for number in numbers:
            await ue.send(Close(session=number))
        await opened(ue)
        assert held(bs) == (0, 0)


async def test_a_ue_holds_its_share() -> None:
    table = SessionTable(pending=16, ue_share=0.25)
    async with station(sessions=table) as (_, address), client(address) as ue:
        numbers = [await opened(ue) for _ in range(3)]
        for number in numbers:
            await draft(ue, number, 1, 6, [1], guess=7)
        busy = await answer(ue, numbers[2])
        assert isinstance(busy, Busy) and "its share of the queue" in busy.reason


@pytest.mark.parametrize("protocol", ["rejection", "split"])
async def test_under_protocols_that_sample_none_is_taken(protocol: str) -> None:
    async with station() as (_, address), client(address) as ue:
        number = await opened(ue, protocol, temperature=1.0)
        q = np.zeros((1, VOCAB), np.uint16)
        q[0, 1] = 65535
        arrays = {"ids": np.array([1], np.int32), "q": q if protocol == "rejection" else q[:, 1]}
        await ue.send(Draft(session=number, round=1, base_len=6, guess=7), arrays)
        refusal = await answer(ue, number)
        assert isinstance(refusal, Fault) and "no window can come ahead" in refusal.reason


@pytest.mark.parametrize("ids", [[VOCAB], [-1], [1] * 257])
async def test_windows_that_cannot_be_taken_are_refused_before_they_are_held(ids: list[int]) -> None:
    async with station() as (bs, address), client(address) as ue:
        number = await opened(ue)
        await draft(ue, number, 1, 6, ids, guess=7)
        assert isinstance(await answer(ue, number), Fault) and held(bs) == (0, 0)


async def test_of_an_unknown_session_every_window_brings_a_resync() -> None:
    async with station() as (_, address), client(address) as ue:
        number = ue.new_session()
        await draft(ue, number, 0, 3, [1])
        await draft(ue, number, 1, 5, [1], guess=7)
        assert [type(await answer(ue, number)) for _ in range(2)] == [Resync, Resync]


async def test_many_ues_that_only_send_ahead_do_not_stop_others() -> None:
    table = SessionTable(pending=8, ue_share=0.5)
    async with station(sessions=table) as (bs, address), client(address) as ue, client(address) as other:
        numbers = [await opened(ue) for _ in range(12)]
        for number in numbers:
            await draft(ue, number, 1, 6, [1], guess=7)
        kinds = await asyncio.gather(*(silent(ue, number) for number in numbers))
        assert kinds.count(True) == 2 and held(bs)[0] == 2  # half of the room, and half of that for one UE
        mine = await opened(other)
        await draft(other, mine, 0, 3, target(2))
        assert isinstance(await answer(other, mine), Verdict)


@pytest.mark.parametrize(("ue_share", "others"), [(0.5, 0), (1.0, 1)])
def test_a_window_ahead_takes_no_place_from_the_one_before_it(ue_share: float, others: int) -> None:
    """That was refused for ever where its UE has one place: the run ended with a timeout. Where windows of others wait,
    one was dropped and the other refused.
    """
    sessions = SessionTable(pending=2, ue_share=ue_share)
    intake = Intake(Offer("synthetic", "", VOCAB, 64, (), 4096), sessions)
    ids = {"ids": np.array([3, 1, 4], np.int32)}
    intake.open(b"ue", Open(session=1, protocol="greedy", threshold=0.0, hidden_size=4), ids)
    window = {"ids": np.array([5, 6], np.int32)}
    ahead = intake.draft(b"ue", Draft(session=1, round=1, base_len=6, guess=7), window)
    assert isinstance(ahead, tuple) and ahead[2]
    sessions.hold(ahead[0], Round(1, ahead[1], None, 0.0))
    waiting = Load(sessions.held.windows + others, sessions.held.size_bytes + others)
    taken = intake.draft(b"ue", Draft(session=1, round=0, base_len=3), window, waiting)
    assert isinstance(taken, tuple) and not taken[2] and not ahead[0].held
    assert sessions.held == Load(0, 0)
