"""Bounds of a base station: beyond each it says why and when to come back; idle sessions are closed with a reason."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.bs.bounds import check_bounds, largest_frame, session_table
from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.runner import ThreadRunner
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.sessions import REMEMBERED, SessionTable
from testbed.channel.link import MAX_MESSAGE_BYTES
from testbed.config import ServeConfig
from testbed.errors import BadInput
from testbed.protocols import TARGET_ONLY, protocol
from testbed.protocols.messages import (
    VERSION,
    Busy,
    Close,
    Draft,
    Hello,
    Hidden,
    NeedHidden,
    Open,
    Opened,
    Resync,
    Verdict,
)
from testbed.synthetic import next_token
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.refusals import refuse
from tests.support.stations import VOCAB, client, station

PROMPT = [3, 1, 4, 1, 5]
IDS = {"ids": np.array(PROMPT, np.int32)}
OFFER = Offer("synthetic", "", VOCAB, 64, (), 4096)


def own(length: int) -> list[int]:
    ids = list(PROMPT)
    for _ in range(length):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(PROMPT) :]


def opening(session: int, kind: str = "greedy", **more: Any) -> Open:
    return Open(session=session, protocol=kind, threshold=0.0, hidden_size=4, **more)


async def ask(ue: Client, number: int, message: Any, arrays: dict[str, Any]) -> Any:
    await ue.send(message, arrays)
    return (await ue.receive(number, 5)).message


class Slow(SyntheticEngine):
    """A pass takes so long."""

    seconds = 0.05

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        time.sleep(self.seconds)
        return super().compute(batch)


# ---------------------------------------------------------------- idle sessions


async def test_an_idle_session_goes_and_says_so() -> None:
    async with station(sessions=SessionTable(idle_s=0.3)) as (bs, address), client(address) as ue:
        number = ue.new_session()
        assert isinstance(await ask(ue, number, opening(number), IDS), Opened)
        await asyncio.sleep(0.6)
        assert len(bs._intake.sessions) == 0
        answer = await ask(ue, number, Draft(session=number, round=0, base_len=5), IDS)
        assert answer == Resync(session=number, reason="idle for more than 0.3 s")
        assert isinstance(await ask(ue, number, opening(number), IDS), Opened)
        assert isinstance(await ask(ue, number, Draft(session=number, round=0, base_len=5), IDS), Verdict)
        other = ue.new_session()
        assert await ask(ue, other, Draft(session=other, round=0, base_len=5), IDS) == Resync(session=other)


async def test_a_ue_that_thinks_for_longer_loses_nothing() -> None:
    class Thinking:
        """Drafts no faster than sessions expire."""

        def begin(self) -> float:
            return 0.0

        async def opened(self, prompt: int, begun_s: float) -> None:
            return

        async def drafted(self, tokens: int, prefix: int, begun_s: float, before: int = 0) -> None:
            await asyncio.sleep(0.25)

    async with station(sessions=SessionTable(idle_s=0.1)) as (bs, address), client(address) as ue:
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
        session = DecodingSession(ue, drafter, protocol("fh"), FixedWindow(4), pace=Thinking())
        record = await session.decode(PROMPT, 15, ())
        assert record.token_ids == own(15)
        assert bs._intake.sessions._opened > 3
        await asyncio.sleep(0.05)
        assert len(bs._intake.sessions) == 0


async def test_a_ue_that_goes_silent_before_its_hidden_states_is_forgotten() -> None:
    async with station(sessions=SessionTable(idle_s=0.2)) as (bs, address), client(address) as ue:
        number = ue.new_session()
        assert isinstance(await ask(ue, number, opening(number, "sh"), IDS), Opened)
        draft = {"ids": np.array([511], np.int32)}
        assert isinstance(await ask(ue, number, Draft(session=number, round=0, base_len=5), draft), NeedHidden)
        await asyncio.sleep(0.5)
        assert len(bs._intake.sessions) == 0
        answer = await ask(ue, number, Hidden(session=number, round=0), {"hidden": np.zeros((1, 4), np.float16)})
        assert answer == Resync(session=number, reason="idle for more than 0.2 s")  # at once, not when it asks again


async def test_what_a_ue_takes_for_its_hidden_states_is_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A UE that kept them back for a minute was behind its guarantee by a minute, and came before all others."""
    monkeypatch.setattr("testbed.bs.scheduling.guarantees.MOST_LAG_S", 0.1)
    async with station() as (bs, address), client(address) as ue:
        number = ue.new_session()
        assert isinstance(await ask(ue, number, opening(number, "sh", speed_tps=4.0), IDS), Opened)
        draft = {"ids": np.array([511], np.int32)}
        assert isinstance(await ask(ue, number, Draft(session=number, round=0, base_len=5), draft), NeedHidden)
        (session,) = bs._intake.sessions
        begun_s = session.begun_s
        assert begun_s is not None
        await asyncio.sleep(0.6)
        states = {"hidden": np.zeros((1, 4), np.float16)}
        assert isinstance(await ask(ue, number, Hidden(session=number, round=0), states), Verdict)
        assert session.lag_s == 0.1 and 0.4 < session.begun_s - begun_s < 2.0


async def test_sessions_of_a_ue_whose_key_was_revoked_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guarantees and streams went on until they ended, or had been idle for minutes."""
    monkeypatch.setattr("testbed.bs.dispatch.MOST_WAIT_S", 0.05)
    async with station(sessions=SessionTable(idle_s=600.0)) as (bs, address), client(address) as ue:
        number = ue.new_session()
        assert isinstance(await ask(ue, number, opening(number), IDS), Opened)
        (session,) = bs._intake.sessions
        await asyncio.sleep(0.2)
        assert len(bs._intake.sessions) == 1
        monkeypatch.setattr(bs._link, "serves", lambda peer: False)
        await asyncio.sleep(0.2)
        assert len(bs._intake.sessions) == 0 and bs._intake.sessions.fate(session.key) == "its key was revoked"


async def test_a_session_that_waits_for_the_engine_is_not_idle() -> None:
    engine = Slow(vocab_size=VOCAB)
    engine.seconds = 0.6
    async with station(engine, sessions=SessionTable(idle_s=0.1)) as (_, address), client(address) as ue:
        number = ue.new_session()
        assert isinstance(await ask(ue, number, opening(number), IDS), Opened)
        assert isinstance(await ask(ue, number, Draft(session=number, round=0, base_len=5), IDS), Verdict)


def test_no_more_is_remembered_of_expired_sessions_than_the_bound() -> None:
    table = SessionTable(per_peer=10**6, total=10**6, idle_s=1.0)
    for number in range(REMEMBERED + 50):
        table.open((b"ue", number), np.array([1], np.int32), protocol("greedy"), 0.0, 1, 0)
    assert len(table.expire(2.0)) == REMEMBERED + 50
    assert table.fate((b"ue", 0)) == "" and table.fate((b"ue", REMEMBERED + 49)) == "idle for more than 1 s"
    assert len(table) == 0 and not table.ues._of and not table.ues._without and len(table._lost) == REMEMBERED


async def test_who_greets_again_under_its_identity_frees_what_it_had() -> None:
    async with station() as (bs, address), client(address) as ue, client(address) as other:
        for one in (ue, other):
            number = one.new_session()
            assert isinstance(await ask(one, number, opening(number), IDS), Opened)
        assert len(bs._intake.sessions) == 2
        await ue.ask(Hello(version=VERSION, tokenizer="", vocab_size=VOCAB))
        assert [key[0] for key in bs._intake.sessions._sessions] == [other._link.identity]  # type: ignore[attr-defined]


# ---------------------------------------------------------------- bounds


async def test_over_each_bound_on_sessions_it_says_which_and_when_to_come_back() -> None:
    table = SessionTable(per_peer=2, total=3, tokens=40)
    async with station(sessions=table) as (_, address), client(address) as one, client(address) as two:
        a, b, c = (one.new_session() for _ in range(3))
        for number in (a, b):
            assert isinstance(await ask(one, number, opening(number), IDS), Opened)
        busy = await ask(one, c, opening(c), IDS)
        assert (busy.reason, busy.retry_s, busy.round) == ("this UE has 2 sessions; at most 2", 1.0, None)
        d, e = two.new_session(), two.new_session()
        long = opening(d, TARGET_ONLY, max_tokens=26)
        assert (
            "hold 10 tokens; 31 more pass the bound of 40"
            in (
                await ask(two, d, msgspec.structs.replace(long, protocol="greedy"), {"ids": np.ones(31, np.int32)})
            ).reason
        )
        assert isinstance(await ask(two, d, opening(d), {"ids": np.ones(30, np.int32)}), Opened)
        assert "3 sessions are open; at most 3" in (await ask(two, e, opening(e), IDS)).reason
        assert isinstance(await ask(two, d, opening(d), {"ids": np.ones(30, np.int32)}), Opened)  # in its own place
        await one.send(Close(session=a))
        await two.send(Close(session=d))
        await asyncio.sleep(0.1)
        assert isinstance(await ask(one, c, opening(c), IDS), Opened)


async def test_a_window_beyond_the_queue_is_refused_and_its_session_stands() -> None:
    async with (
        station(Slow(vocab_size=VOCAB), sessions=SessionTable(pending=1)) as (bs, address),
        client(address) as ue,
    ):
        numbers = [ue.new_session() for _ in range(4)]
        for number in numbers:
            assert isinstance(await ask(ue, number, opening(number), IDS), Opened)
        for number in numbers:
            await ue.send(Draft(session=number, round=0, base_len=5), IDS)
        answers = [(await ue.receive(number, 5)).message for number in numbers]
        refused = [a for a in answers if isinstance(a, Busy)]
        assert isinstance(answers[0], Verdict) and len(refused) in (2, 3)  # one in the engine, one waits
        assert all(a.round == 0 and a.retry_s > 0 and "1 windows wait" in a.reason for a in refused)
        assert len(bs._intake.sessions) == 4
        again = await ask(ue, refused[0].session, Draft(session=refused[0].session, round=0, base_len=5), IDS)
        assert isinstance(again, Verdict)


async def test_large_windows_wait_up_to_a_number_of_bytes() -> None:
    """Distributions over a vocabulary make a window heavy; few of them fill what may wait."""
    ids = np.array([1, 2], np.int32)
    q = np.zeros((2, VOCAB), np.uint16)
    q[[0, 1], ids] = 65535
    table = SessionTable(windows_bytes=1)
    async with station(Slow(vocab_size=VOCAB), sessions=table) as (_, address), client(address) as ue:
        numbers = [ue.new_session() for _ in range(4)]
        for number in numbers:
            assert isinstance(await ask(ue, number, opening(number, "rejection", temperature=1.0), IDS), Opened)
        for number in numbers:
            await ue.send(Draft(session=number, round=0, base_len=5), {"ids": ids, "q": q})
        answers = [(await ue.receive(number, 5)).message for number in numbers]
        refused = [a for a in answers if isinstance(a, Busy)]
        assert isinstance(answers[0], Verdict) and len(refused) in (2, 3)
        whole = ids.nbytes + q.nbytes + 3 * 4 * VOCAB  # and the target's distributions at three positions
        assert all(f"windows of {whole} bytes wait" in a.reason for a in refused)


async def test_ues_over_the_bounds_wait_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.bs.intake.RETRY_S", 0.02)
    table = SessionTable(per_peer=3, total=8, pending=1, tokens=400)
    async with station(Slow(vocab_size=VOCAB), sessions=table) as (_, address), client(address) as ue:
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
        sessions = [DecodingSession(ue, drafter, protocol(kind), FixedWindow(3)) for kind in ("greedy", "fh", "sh") * 2]
        decoding = [session.decode(PROMPT, 20, ()) for session in sessions]
        decoding += [decode_remotely(ue, PROMPT, 20, ()) for _ in range(3)]
        records = await asyncio.gather(*decoding)
    assert [record.token_ids for record in records] == [own(20)] * 9


def test_speeds_that_no_session_has_any_more_are_forgotten() -> None:
    """UEs may ask for any speed: of a million different ones nothing stays."""
    table = SessionTable()
    for number in range(1000):
        table.open((b"ue", 1), np.array([1], np.int32), protocol("greedy"), 0.0, 1, 0, speed_tps=1 + number / 1000)
    assert len(table._promised) == 1
    table.close((b"ue", 1))
    assert not table._promised


def test_sessions_that_the_engine_never_saw_are_no_work_for_it() -> None:
    """Who opens and closes sessions during a long pass piles up nothing behind it."""
    engine, released = SyntheticEngine(vocab_size=VOCAB), list[str]()
    begun, hold, step = threading.Event(), threading.Event(), engine.step
    engine.release = released.append  # type: ignore[method-assign]
    engine.step = lambda: begun.set() or (hold.wait(20) and step())  # type: ignore[method-assign, assignment, return-value]
    with ThreadPoolExecutor(1) as thread:
        runner = ThreadRunner(engine, thread)

        async def run() -> None:
            runner.submit(VerifyRequest("seen", np.array([1], np.int32), np.zeros(0, np.int32)))
            passing = asyncio.create_task(runner.step())
            await asyncio.to_thread(begun.wait, 20)
            for number in range(10_000):
                runner.release(f"stranger/{number}")
            runner.release("seen")
            runner.release("seen")
            assert thread._work_queue.qsize() == 0 and runner._leaving == ["seen"] and not released
            hold.set()
            await passing

        asyncio.run(run())
    assert released == ["seen"]


def test_peers_of_one_key_are_one_ue() -> None:
    table = SessionTable(per_peer=2, owner=lambda peer: peer[:3])
    for peer in (b"keyA", b"keyB"):
        table.open((peer, 1), np.array([1], np.int32), protocol("greedy"), 0.0, 1, 0)
    assert (
        table.refusal((b"keyC", 1), 0) is not None
        and table.refusal((b"kexC", 1), 0) is None
        and table.refusal((b"keyA", 1), 0) is None
    )
    assert len(table.leave(b"keyA")) == 1
    assert table.refusal((b"keyC", 1), 0) is None and len(table) == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"max_sessions": 0}, "max-sessions "),
        ({"max_sessions_per_ue": -1}, "max-sessions-per-ue"),
        ({"max_pending": 0}, "max-pending"),
        ({"max_window": 0}, "max-window"),
        ({"max_window": 2**20}, "max-window"),
        ({"max_kv_tokens": 0}, "max-kv-tokens"),
        ({"idle_s": 0.0}, "idle-s"),
        ({"idle_s": float("inf")}, "idle-s"),
        ({"bind": "tcp://0.0.0.0:5555"}, "--keys DIR"),
        ({"bind": "tcp://127.0.0.1:5555,tcp://*:5556"}, "tcp://*:5556"),
        ({"keys": "/no/such"}, "testbed keys new"),
    ],
)
def test_bounds_that_nothing_would_pass_are_refused(change: dict[str, Any], word: str) -> None:
    check_bounds(ServeConfig())
    refuse(lambda: check_bounds(ServeConfig(**change)), BadInput, word)


def test_the_table_has_the_bounds_of_the_configuration() -> None:
    config = ServeConfig(max_sessions=7, max_sessions_per_ue=3, max_pending=5, idle_s=9.0)
    table = session_table(config, 1000, lambda peer: peer)
    assert (table.total, table.per_peer, table.room.pending, table.idle_s) == (7, 3, 5, 9.0)
    assert table.room.tokens == 4000
    assert session_table(config, None, lambda peer: peer).room.tokens is None
    assert session_table(ServeConfig(max_kv_tokens=10), 1000, lambda peer: peer).room.tokens == 10


@pytest.mark.parametrize(
    ("offer", "largest"),
    [
        (OFFER, 2 * 256 * 16384),
        (Offer("m", "", 100_000, 64, (), 4096, max_window=64), 2 * 64 * 100_000),
        (Offer("m", "", 512, 64, (), 2**22, max_window=8), 4 * 2**22),
        (Offer("m", "", 256_000, 64, (), 4096), MAX_MESSAGE_BYTES),
    ],
)
def test_a_frame_has_room_for_what_an_honest_ue_sends(offer: Offer, largest: int) -> None:
    assert largest_frame(offer) == largest


def test_a_prompt_beyond_the_context_is_no_session() -> None:
    intake = Intake(OFFER, SessionTable())
    refuse(lambda: intake.open(b"ue", opening(1), {"ids": np.ones(4096, np.int32)}), Exception, "context of 4096")
