"""Room: what sessions reserve, and one UE's share of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from testbed.bs.bounds import session_table
from testbed.bs.pending import Round
from testbed.bs.room import MOST_REFUSED, Load, RefusedUes
from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.slo import Slo
from testbed.bs.sessions import AHEAD_TOKENS, Session, SessionTable
from testbed.config import ServeConfig
from testbed.optim.pass_time import Coefficients
from testbed.protocols.base import Window
from testbed.protocols.messages import Busy, Draft, Fault, Message, Open, Opened, Resync, Verdict
from testbed.ue.client import Client
from tests.support.stations import VOCAB, client, station

TIMES = Coefficients(1e-5, 1e-9, 1e-8, 1e-3)
ONE = {"ids": np.array([1], np.int32)}


async def ask(ue: Client, number: int, tokens: int, **fields: Any) -> Message:
    message = Open(session=number, threshold=0.0, hidden_size=4, **{"protocol": "greedy", **fields})
    await ue.send(message, {"ids": np.ones(tokens, np.int32)})
    return (await ue.receive(number, 5)).message  # type: ignore[no-any-return]


async def test_claims_of_long_outputs_fill_no_room() -> None:
    table = session_table(ServeConfig(max_kv_tokens=20_000), None, lambda peer: peer)
    async with station(sessions=table) as (_, address), client(address) as greedy, client(address) as other:
        for _ in range(5):
            answer = await ask(greedy, greedy.new_session(), 3, max_tokens=4000, window=4)
            assert isinstance(answer, Opened)
        assert sum(session.reserved for session in table) == 5 * (3 + AHEAD_TOKENS)
        for _ in range(5):
            assert isinstance(await ask(other, other.new_session(), 1000), Opened)


def test_a_session_reserves_what_it_has_and_a_part_of_what_it_asks_for() -> None:
    table = SessionTable()
    session = table.open((b"ue", 1), np.ones(10, np.int32), None, 0.0, 4, wanted=4010)
    assert session.reserved == 10 + AHEAD_TOKENS
    session.append(np.ones(3900, np.int32))
    assert session.reserved == 4010
    assert table.open((b"ue", 2), np.ones(10, np.int32), None, 0.0, 4, wanted=30).reserved == 30
    assert table.open((b"ue", 3), np.ones(10, np.int32), None, 0.0, 4, wanted=0).reserved == 10


async def test_a_ue_alone_may_fill_the_room_and_gives_up_its_excess_when_another_comes() -> None:
    table = SessionTable(tokens=1000, ue_share=0.5)
    async with station(sessions=table) as (_, address), client(address) as first, client(address) as second:
        numbers = [first.new_session() for _ in range(9)]
        for number in numbers:
            assert isinstance(await ask(first, number, 100), Opened)
        mine = [second.new_session() for _ in range(5)]
        for number in mine:
            assert isinstance(await ask(second, number, 100), Opened)
        assert sum(session.reserved for session in table) == 1000
        busy = await ask(second, second.new_session(), 100)
        assert isinstance(busy, Busy) and "hold 1000 tokens; 100 more pass the bound of 1000" in busy.reason
        lost, kept = numbers[:4], numbers[4:]
        await first.send(Draft(session=lost[0], round=0, base_len=100), ONE)
        answer = (await first.receive(lost[0], 5)).message
        assert answer == Resync(session=lost[0], reason="its room was needed for other UEs")
        assert isinstance(await ask(first, lost[0], 100), Busy)
        for number in (kept[-1], mine[0]):
            ue = first if number == kept[-1] else second
            await ue.send(Draft(session=number, round=0, base_len=100), ONE)
            assert isinstance((await ue.receive(number, 5)).message, Verdict)


async def test_a_ue_beyond_its_share_opens_nothing_while_another_waits() -> None:
    table = SessionTable(tokens=1000, ue_share=0.5)
    async with station(sessions=table) as (_, address), client(address) as first, client(address) as second:
        numbers = [first.new_session() for _ in range(7)]
        for number in numbers[:6]:
            assert isinstance(await ask(first, number, 100), Opened)
        mine = second.new_session()
        assert isinstance(await ask(second, mine, 950), Busy)  # does not fit beside the first one's share
        busy = await ask(first, numbers[6], 100)
        assert isinstance(busy, Busy)
        assert busy.reason == "this UE holds 600 tokens while others wait; 100 more pass its share of 500"
        assert isinstance(await ask(second, mine, 50), Opened)  # and waits no longer
        assert isinstance(await ask(first, numbers[6], 100), Opened)


@pytest.mark.parametrize("tokens", [950, 10**6])
def test_no_session_is_closed_for_one_that_does_not_fit_anyway(tokens: int) -> None:
    table = SessionTable(tokens=1000, ue_share=0.5)
    for number in range(6):
        table.open((b"one", number), np.ones(100, np.int32), None, 0.0, 4, 0)
    assert table.reclaimable((b"two", 1), tokens) == []
    assert len(table.reclaimable((b"two", 1), 500)) == 1


def test_streams_of_a_ue_beyond_its_share_make_room_after_its_idle_sessions() -> None:
    """They never wait for their UE, and grow: a few short prompts filled the room for minutes."""
    table = SessionTable(tokens=1000, ue_share=0.5)
    streams = [table.open((b"one", n), np.ones(100, np.int32), None, 0.0, 4, 0) for n in range(9)]
    for session in streams[:8]:
        session.alone, session.current = True, Round(0, Window(np.zeros(0, np.int32), None), None, 0.0)
        session.heard_s = -1.0
    assert table.reclaimable((b"two", 1), 150) == [streams[8]]
    assert table.reclaimable((b"two", 1), 250) == [streams[8], streams[0]]
    assert table.reclaimable((b"one", 99), 150) == []


def test_a_ue_keeps_one_session_however_large() -> None:
    """The only session of a UE with a long prompt was closed for others, who then kept it out."""
    table = SessionTable(tokens=1000, ue_share=0.5)
    large = table.open((b"one", 1), np.ones(700, np.int32), None, 0.0, 4, 0)
    assert table.reclaimable((b"two", 1), 350) == []
    small = table.open((b"one", 2), np.ones(200, np.int32), None, 5.0, 4, 0)
    assert table.reclaimable((b"two", 1), 250) == [large]  # heard less recently
    large.heard_s = 9.0
    assert table.reclaimable((b"two", 1), 250) == [small]
    assert table.reclaimable((b"two", 1), 350) == []


def test_ues_that_were_refused_are_bounded_in_number() -> None:
    """Without keys each identity is one, and a peer can take as many as it likes."""
    refused = RefusedUes()
    for number in range(3 * MOST_REFUSED):
        refused.add(str(number).encode(), 1e-3 * number)
    assert len(refused._since_s) == MOST_REFUSED and refused.others(b"0", 3.0)


async def test_no_session_is_closed_for_one_that_is_refused_for_another_reason() -> None:
    """A UE within its share closed the sessions of others with messages that open none."""
    table = SessionTable(tokens=1000, ue_share=0.5, per_peer=6)
    options = {"scheduler": Slo(coefficients=TIMES), "admission": Admission(coefficients=TIMES, max_requests=16)}
    async with station(sessions=table, **options) as (_, address), client(address) as first, client(address) as second:
        for _ in range(6):
            assert isinstance(await ask(first, first.new_session(), 150), Opened)
        for ids, more in (
            (np.full(200, VOCAB, np.int32), {}),
            (np.full(200, 1, np.int32), {"speed_tps": 1e6}),
            (np.full(200, 1, np.int32), {"top_p": 2.0}),
        ):
            number = second.new_session()
            message = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=4, **more)
            await second.send(message, {"ids": ids})
            assert isinstance((await second.receive(number, 5)).message, Fault | Busy)
            assert len(table) == 6
        for number in [second.new_session() for _ in range(6)]:
            assert isinstance(await ask(second, number, 1), Opened)
        assert isinstance(await ask(second, second.new_session(), 200), Busy)  # has all its sessions
        assert len(table) == 12
        table.close(next(session.key for session in table if session.reserved == 1))
        assert isinstance(await ask(second, second.new_session(), 200), Opened)


def test_a_session_larger_than_a_share_is_taken_where_it_is_the_only_one() -> None:
    table = SessionTable(tokens=1000, ue_share=0.1)
    assert table.refusal((b"two", 1), 1001) is not None  # waits
    assert table.refusal((b"one", 1), 900) is None


def test_one_ue_holds_its_share_of_the_queue() -> None:
    def waiting(peer: bytes, number: int) -> Session:
        session = table.open((peer, number), np.ones(10, np.int32), None, 0.0, 4, 0)
        session.current = Round(0, Window(np.ones(2, np.int32), None), None, 0.0)
        return session

    table = SessionTable(pending=8, ue_share=0.5)
    for number in range(4):
        assert table.crowded(Load(number, 8 * number), b"one") is None
        waiting(b"one", number)
    reason = table.crowded(Load(4, 32), b"one")
    assert reason == "4 windows of this UE, of 32 bytes, wait for the engine: its share of the queue"
    assert table.crowded(Load(4, 32), b"two") is None
    assert "at most 8" in (table.crowded(Load(8, 64), b"two") or "")


def test_one_ue_holds_its_share_of_the_bytes_that_wait() -> None:
    table = SessionTable(windows_bytes=1000, ue_share=0.5)
    session = table.open((b"one", 1), np.ones(10, np.int32), None, 0.0, 4, 0)
    session.current = Round(0, Window(np.ones(150, np.int32), None), None, 0.0)
    assert "of 600 bytes" in (table.crowded(Load(1, 600), b"one") or "")
    assert table.crowded(Load(1, 600), b"two") is None


def test_the_share_is_an_option() -> None:
    assert session_table(ServeConfig(), 100, lambda peer: peer).room.ue_share == 0.5
    assert session_table(ServeConfig(max_ue_share=1.0), 100, lambda peer: peer).room.ue_share == 1.0
