"""Rounds that take long to decide, drawn or judged by a head: the same tokens, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from testbed.assets.fingerprints import SYNTHETIC
from testbed.bs.engines import coupled, runner
from testbed.bs.judging import distributions, long_rounds
from testbed.bs.judging.base import Candidates, Judge
from testbed.bs.judging.distributions import Drawing
from testbed.bs.judging.head import BudgetJudge, HeadJudge
from testbed.bs.judging.long_rounds import LongRounds, SetAside
from testbed.bs.pending import Round
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.decision_head.head import DecisionHead
from testbed.errors import LinkTimeout, ProtocolError
from testbed.protocols import protocol
from testbed.protocols.base import Window
from testbed.protocols.messages import Busy, Close, Draft, Hidden, NeedHidden, Open, Opened, Verdict
from testbed.protocols.sampling import Coupling, Probs, Sampling
from testbed.synthetic import next_token
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.heads import random_head
from tests.support.stations import VOCAB, client, station

PROMPT = [1, 2, 3]


async def decode(
    ue: Client, kind: str, tokens: int = 24, threshold: float = 0.0, coupled: bool = False, block: bool = False
) -> list[int]:
    drafter, sampling = SyntheticDrafter(vocab_size=VOCAB, alpha=0.6), Sampling(1.0, 0, 0.9, coupled, block)
    session = DecodingSession(ue, drafter, protocol(kind), FixedWindow(4), threshold, sampling=sampling, seed=7)
    return (await session.decode(PROMPT, tokens, ())).token_ids


async def aside(bs: BaseStation, count: int) -> None:
    """Wait until this many rounds are set aside, beside the one that is decided."""

    async def waiting() -> None:
        while bs._long.load.windows < count:
            await asyncio.sleep(0.001)

    await asyncio.wait_for(waiting(), 15)


class Held(HeadJudge):
    """A head whose calls wait for `go`; `sizes`: windows of each call beside the event loop."""

    def __init__(self) -> None:
        super().__init__(random_head())
        self.begun, self.go, self.sizes = threading.Event(), threading.Event(), list[int]()

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        self.begun.set()
        assert self.go.wait(10)
        if threading.current_thread() is not threading.main_thread():
            self.sizes.append(len(batch))
        return super().judge(batch)


async def test_streams_that_are_set_aside_count_as_no_windows() -> None:
    """Rounds that the target decodes alone refused the drafts of others. Windows that join them count."""
    async with station() as (bs, _):
        for number, drafted in enumerate((0, 0, 3)):
            prompt, ids = np.array(PROMPT, np.int32), np.zeros(drafted, np.int32)
            session = bs._intake.sessions.open((b"ue", number), prompt, protocol("split"), 0.0, 1, 300)
            round_ = Round(0, Window(ids, None), None, 0.0, target_bytes=5 * drafted)
            session.alone, session.current = number != 1, round_
            waiting = bs._long._aside.setdefault(b"ue", deque())
            waiting.append(SetAside(session, round_, 0.0))
        assert bs._long.load == (2, 12 + 15)
        assert [session.waiting for session in bs._intake.sessions] == [[], [0], [27]]
        bs._long._aside.clear()


@pytest.mark.parametrize(("kind", "block"), [("rejection", False), ("rejection", True), ("split", False)])
async def test_rounds_that_are_set_aside_have_the_same_tokens(
    kind: str, block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for most in (long_rounds.MOST_VALUES, 2 * VOCAB, 0):
        monkeypatch.setattr(long_rounds, "MOST_VALUES", most)
        async with station() as (_, address), client(address) as ue:
            found.append(await decode(ue, kind, block=block))
    assert found[0] == found[1] == found[2] and len(found[0]) == 24


@pytest.mark.parametrize("kind", ["fh", "sh"])
@pytest.mark.parametrize("make", [HeadJudge, lambda head: BudgetJudge(head, 0.95)])
async def test_judged_rounds_that_are_set_aside_have_the_same_tokens(
    kind: str, make: Callable[[DecisionHead], Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, threads, whole = [], set[bool](), HeadJudge.probabilities

    def seen(*arguments: Any) -> list[NDArray[np.float32]]:
        threads.add(threading.current_thread() is threading.main_thread())
        return whole(*arguments)

    monkeypatch.setattr(HeadJudge, "probabilities", seen)
    for most in (long_rounds.MOST_VALUES, 0):
        monkeypatch.setattr(long_rounds, "MOST_VALUES", most)
        threads.clear()
        async with station(judge=make(random_head())) as (_, address), client(address) as ue:
            found.append((await decode(ue, kind, threshold=0.6), set(threads)))
    assert found[0][0] == found[1][0] and len(found[0][0]) == 24
    assert found[0][1] == {True} and found[1][1] == {False}


@pytest.mark.parametrize("kind", ["fh", "sh"])
async def test_others_are_served_while_a_head_judges(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_rounds, "MOST_VALUES", 0)
    judge = Held()
    async with station(judge=judge) as (_, address), client(address) as one, client(address) as other:
        slow = asyncio.create_task(decode(one, kind, threshold=0.6))
        try:
            assert await asyncio.to_thread(judge.begun.wait, 30)
            assert len(await decode(other, "greedy")) == 24
            assert not slow.done()
        finally:
            judge.go.set()
        assert len(await slow) == 24


async def test_rounds_of_several_ues_are_judged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is judged, those of others wait; together they are one evaluation of the head."""
    judge, most = Held(), long_rounds.MOST_VALUES
    monkeypatch.setattr(long_rounds, "MOST_VALUES", 0)
    async with contextlib.AsyncExitStack() as stack:
        bs, address = await stack.enter_async_context(station(judge=judge))
        ues = [await stack.enter_async_context(client(address)) for _ in range(5)]
        slow = [asyncio.create_task(decode(ue, "fh", threshold=0.6)) for ue in ues]
        try:
            assert await asyncio.to_thread(judge.begun.wait, 15)
            await aside(bs, 4)
            monkeypatch.setattr(long_rounds, "MOST_VALUES", most)
        finally:
            judge.go.set()
        found = await asyncio.gather(*slow)
    assert all(tokens == found[0] for tokens in found) and judge.sizes == [1, 4]


async def test_hidden_states_are_taken_once_and_counted_while_they_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits for them, and they themselves, counted as nothing: a UE that sends none filled the memory. Other
    windows are refused then, and not the hidden states, which make room.
    """
    monkeypatch.setattr(long_rounds, "MOST_VALUES", 0)
    judge = Held()
    async with station(judge=judge) as (bs, address), client(address) as ue:
        number = ue.new_session()
        draft = Draft(session=number, round=0, base_len=len(PROMPT))
        open_ = Open(session=number, protocol="sh", threshold=0.5, hidden_size=64, drafter=SYNTHETIC)
        await ue.send(open_, {"ids": np.array(PROMPT, np.int32)})
        wrong = np.array([(next_token(PROMPT, VOCAB, 0) + 1) % VOCAB], np.int32)
        await ue.send(draft, {"ids": wrong})
        kinds = [type((await ue.receive(number, 5)).message) for _ in range(2)]
        assert kinds == [Opened, NeedHidden]
        hidden, states = Hidden(session=number, round=0), {"hidden": np.ones((1, 64), np.float16)}
        asked = 4 * 2 * bs._intake.offer.hidden_size + 4 * 64
        try:
            assert tuple(bs.load) == (0, asked)
            with monkeypatch.context() as patch:
                patch.setattr(bs._intake.sessions.room, "windows_bytes", asked)
                other = ue.new_session()
                await ue.send(replace(open_, session=other), {"ids": np.array(PROMPT, np.int32)})
                await ue.send(replace(draft, session=other), {"ids": wrong})
                assert isinstance((await ue.receive(other, 5)).message, Opened)
                busy = (await ue.receive(other, 5)).message
                assert isinstance(busy, Busy) and busy.round == 0 and "wait for the engine" in busy.reason
                patch.setattr(bs._intake.sessions.room, "windows_bytes", 2 * asked)
                patch.setattr(bs._intake.sessions.room, "ue_share", 0.5)
                await ue.send(replace(draft, session=other), {"ids": wrong})
                busy = (await ue.receive(other, 5)).message
                assert isinstance(busy, Busy) and "its share of the queue" in busy.reason
                await ue.send(hidden, states)
                assert await asyncio.to_thread(judge.begun.wait, 30)
            for _ in range(3):
                await ue.send(hidden, states)
            await ue.send(draft, {"ids": wrong})  # its answer is the verdict
            await ue.rtt_s(1)
            assert bs.load == (0, 0) and not next(iter(bs._intake.sessions)).idle
        finally:
            judge.go.set()
        verdict = (await ue.receive(number, 5)).message
        assert isinstance(verdict, Verdict) and (verdict.candidates, verdict.queried) == (1, 1)
        with pytest.raises(LinkTimeout):
            await ue.receive(number, 0.1)
        assert judge.sizes == [1]


async def test_what_waits_for_hidden_states_leaves_with_its_session() -> None:
    async with station(judge=HeadJudge(random_head())) as (bs, address), client(address) as ue:
        numbers = [ue.new_session() for _ in range(3)]
        for number in numbers:
            open_ = Open(session=number, protocol="sh", threshold=0.5, hidden_size=64, drafter=SYNTHETIC)
            await ue.send(open_, {"ids": np.array(PROMPT, np.int32)})
            wrong = np.array([(next_token(PROMPT, VOCAB, 0) + 1) % VOCAB], np.int32)
            await ue.send(Draft(session=number, round=0, base_len=len(PROMPT)), {"ids": wrong})
            kinds = [type((await ue.receive(number, 5)).message) for _ in range(2)]
            assert kinds == [Opened, NeedHidden]
        each = bs.load.size_bytes // 3
        assert each > 0 and bs._intake.sessions.held == (0, 3 * each)
        await ue.send(Close(session=numbers[0]))
        await ue.send(open_, {"ids": np.array(PROMPT, np.int32)})  # the last one, again
        await ue.rtt_s(1)
        assert bs.load == (0, each)
        bs._intake.sessions.lose(next(iter(bs._intake.sessions)), "a reason")
        assert bs.load == (0, 0)


async def test_others_are_served_while_a_round_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, whole = threading.Event(), threading.Event(), Drawing.choose

    def held(*arguments: Any) -> None:
        begun.set()
        assert go.wait(30)
        whole(*arguments)

    monkeypatch.setattr(long_rounds, "MOST_VALUES", 0)
    monkeypatch.setattr(Drawing, "choose", held)
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
    """A UE with many sampled rounds delays another one's by the one that is being decided; what waits is load."""
    go, turns, whole, following = threading.Event(), list[bytes](), Drawing.choose, LongRounds._next

    def held(*arguments: Any) -> None:
        assert go.wait(30)
        whole(*arguments)

    def taken(self: LongRounds) -> list[SetAside]:
        found = following(self)
        turns.extend(one.session.key[0] for one in found)
        return found

    monkeypatch.setattr(long_rounds, "MOST_VALUES", 0)
    monkeypatch.setattr(Drawing, "choose", held)
    monkeypatch.setattr(LongRounds, "_next", taken)
    async with station() as (bs, address), client(address) as many, client(address) as one, client(address) as other:
        slow = [asyncio.create_task(decode(many, "split")) for _ in range(6)]
        try:
            await aside(bs, 5)  # one is being decided
            slow.append(asyncio.create_task(decode(one, "split")))
            await aside(bs, 6)
            assert bs.load.size_bytes > 6 * 4 * (4 + 1) * VOCAB
            assert len(await decode(other, "greedy")) == 24
            bs._intake.sessions.room.windows_bytes = 6 * 4 * (4 + 1) * VOCAB
            assert "wait for the engine" in (bs._intake.sessions.crowded(bs.load, b"other") or "")
            bs._intake.sessions.room.windows_bytes = 2**30
        finally:
            go.set()
        assert [len(tokens) for tokens in await asyncio.gather(*slow)] == [24] * 7
        assert turns[0] == turns[2] != turns[1] and bs.load == (0, 0)


async def test_a_ue_with_long_rounds_has_its_turn_less_often() -> None:
    """Each UE gets an equal part of the time; a long round, which is decided in one piece, had the turn of a short one.
    A UE that did nothing saves no part for later.
    """
    async with station() as (bs, _):
        sessions, aside, order = bs._intake.sessions, bs._long, list[str]()

        def wait(ue: str, count: int, drafted: int) -> None:
            window = Window(np.zeros(drafted, np.int32), None, np.ones(drafted, np.uint16))
            for number in range(count):
                key = (ue.encode(), len(sessions) + number)
                session = sessions.open(key, np.ones(3, np.int32), protocol("split"), 0.0, 1, 300)
                session.current = Round(0, window, None, 0.0)
                waiting = aside._aside.setdefault(key[0], deque())
                waiting.append(SetAside(session, session.current, 0.0))

        wait("long", 3, 255)
        wait("short", 70, 7)  # 32 of them are one long one
        for turn in range(100):
            if turn == 40:
                wait("another", 2, 255)
            order += [one.session.key[0].decode()[0] for one in aside._next()]
        assert not aside._aside and "".join(order[:34]) == "l" + "s" * 32 + "l"
        assert (order.count("l"), order.count("s"), order.count("a")) == (3, 70, 2)


async def test_rounds_of_closed_sessions_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_rounds, "MOST_VALUES", 0)
    async with station() as (bs, address), client(address) as ue:
        sessions, aside = bs._intake.sessions, bs._long
        window = Window(np.zeros(4, np.int32), None, np.ones(4, np.uint16))
        for number in range(3):
            session = sessions.open((b"ue", number), np.ones(3, np.int32), protocol("split"), 0.0, 1, 300)
            session.current = Round(0, window, None, 0.0)
            aside.set_aside([(session, session.current)])
            sessions.close(session.key)
        assert aside.load.windows <= 1
        assert len(await decode(ue, "split")) == 24 and aside.load == (0, 0)


async def test_a_round_that_fails_closes_its_session_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Probs:
        raise RuntimeError("no distribution")

    monkeypatch.setattr(long_rounds, "MOST_VALUES", 0)
    async with station() as (bs, address), client(address) as one, client(address) as other:
        with monkeypatch.context() as patch:
            patch.setattr(distributions, "warp", fails)
            with pytest.raises(ProtocolError, match="internal error: no distribution"):
                await decode(one, "rejection")
        assert bs.metrics()["failed_sessions"] == 1
        assert len(await decode(other, "rejection")) == 24


# ---------------------------------------------------------------- coupled sampling


class Chooses:
    """Coupled sampling in which choosing a token waits for `go`; `rows`: positions chosen beside the event loop."""

    def __init__(self) -> None:
        self.begun, self.go, self.rows = threading.Event(), threading.Event(), list[tuple[int, int]]()
        self._whole = coupled._choice

    def __call__(self, coupling: Coupling, logits: Any, position: int, *rest: Any) -> tuple[int, float, float]:
        if threading.current_thread() is not threading.main_thread():
            self.begun.set()
            assert self.go.wait(30)
            self.rows.append((coupling.seed, position))
        return self._whole(coupling, logits, position, *rest)


@pytest.fixture
def chooses(monkeypatch: pytest.MonkeyPatch) -> Chooses:
    """Every token of coupled sampling is chosen beside the event loop, one at a time."""
    held = Chooses()
    monkeypatch.setattr(coupled, "_choice", held)
    monkeypatch.setattr(runner, "MOST_VALUES", 0)
    monkeypatch.setattr(long_rounds, "MOST_VALUES", 0)
    return held


@pytest.mark.parametrize(("kind", "threshold"), [("coupled", 0.0), ("greedy", 0.0), ("fh", 0.6), ("sh", 0.6)])
async def test_coupled_rounds_that_are_set_aside_have_the_same_tokens(
    kind: str, threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for most in (long_rounds.MOST_VALUES, 2 * VOCAB, 0):
        monkeypatch.setattr(runner, "MOST_VALUES", most)
        monkeypatch.setattr(long_rounds, "MOST_VALUES", most)
        async with station(judge=HeadJudge(random_head())) as (_, address), client(address) as ue:
            found.append(await decode(ue, kind, threshold=threshold, coupled=True))
    assert found[0] == found[1] == found[2] and len(found[0]) == 24


@pytest.mark.parametrize("kind", ["coupled", "sh"])
async def test_others_are_served_while_coupled_tokens_are_chosen(kind: str, chooses: Chooses) -> None:
    """A pass chose all of its tokens before any of its rounds was answered: seconds for windows of 256 tokens."""
    async with station() as (bs, address), client(address) as one, client(address) as other:
        slow = asyncio.create_task(decode(one, kind, coupled=True))
        try:
            assert await asyncio.to_thread(chooses.begun.wait, 30)
            assert len(await decode(other, "greedy")) == 24
            assert not slow.done()
        finally:
            chooses.go.set()
        assert len(await slow) == 24 and bs.load == (0, 0)


async def test_ues_take_turns_token_by_token(chooses: Chooses) -> None:
    """The window of one UE does not wait until the longer one of another is chosen."""
    async with station() as (bs, address), client(address) as one, client(address) as other:
        numbers = [ue.new_session() for ue in (one, other)]
        for ue, number, seed, size in zip((one, other), numbers, (1, 2), (200, 4), strict=True):
            ids = np.arange(1, size + 1, dtype=np.int32)
            how = {"temperature": 1.0, "coupled": True, "seed": seed}
            open_ = Open(session=number, protocol="coupled", threshold=0.0, hidden_size=64, drafter=SYNTHETIC, **how)
            await ue.send(open_, {"ids": np.array(PROMPT, np.int32)})
            await ue.send(Draft(session=number, round=0, base_len=len(PROMPT)), {"ids": ids})
        try:
            assert await asyncio.to_thread(chooses.begun.wait, 30)
            while len(bs._long._aside) < 1:  # one is in the other thread
                await asyncio.sleep(0.001)
            assert bs.load.size_bytes > 0
            await asyncio.sleep(0.2)
        finally:
            chooses.go.set()
        assert isinstance((await other.receive(numbers[1], 15)).message, Opened)
        verdict = (await other.receive(numbers[1], 15)).message
        seen = [seed for seed, _ in chooses.rows]
        assert isinstance(verdict, Verdict) and verdict.judge_s >= 0.19  # else the UE takes it for time on the link
        assert seen.count(2) == 5 and len(seen) < 100  # the long one goes on meanwhile
        assert isinstance((await one.receive(numbers[0], 15)).message, Opened)
        assert isinstance((await one.receive(numbers[0], 15)).message, Verdict)
        assert [position for seed, position in chooses.rows if seed == 1] == list(range(3, 204))


async def test_windows_that_joined_streams_count_until_they_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their part of the room was free once their rounds began: the distributions of all that one UE sent were kept."""
    go, whole, size_bytes = threading.Event(), coupled._choice, 4 * 8 + 4 * 9 * VOCAB
    table = SessionTable(windows_bytes=4 * size_bytes)

    def held(coupling: Coupling, logits: Any, position: int, margin: float, faced: int | None) -> Any:
        assert faced is None or go.wait(30)  # tokens of streams without a window are chosen in their passes
        return whole(coupling, logits, position, margin, faced)

    monkeypatch.setattr(runner, "MOST_VALUES", VOCAB)
    monkeypatch.setattr(long_rounds, "MOST_VALUES", 0)
    async with station(sessions=table) as (bs, address), client(address) as ue:
        own = await decode(ue, "coupled", coupled=True)
        monkeypatch.setattr(coupled, "_choice", held)
        try:
            for number in (numbers := [ue.new_session() for _ in range(8)]):
                how = {"temperature": 1.0, "top_p": 0.9, "coupled": True, "seed": 7, "alone": True, "stream": 256}
                open_ = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=4, max_tokens=24, **how)
                await ue.send(open_, {"ids": np.array(PROMPT, np.int32)})
                await ue.send(Draft(session=number, round=1, base_len=4), {"ids": np.array(own[1:9], np.int32)})
                await joined(bs, number)
            rounds = [session.current for session in table if session.current is not None]
            kept = [one.result.logprobs.nbytes for one in rounds if one.choices is not None]
            assert 1 <= len(kept) <= 4 and sum(kept) <= table.room.windows_bytes
            assert bs.load.size_bytes >= sum(kept) - size_bytes  # one is in the other thread
        finally:
            go.set()
        for number in numbers:
            found = list[int]()
            while len(found) < 24:
                if isinstance(verdict := (await ue.receive(number, 15)).message, Verdict):
                    taken = own[len(found) : len(found) + verdict.accepted]
                    found += [*taken, verdict.token]
            assert found == own
        assert bs.load == (0, 0)


async def joined(bs: BaseStation, number: int) -> None:
    """Wait until the window of a stream is verified, or the stream has ended without it."""

    async def waiting() -> None:
        while True:
            await asyncio.sleep(0.001)
            session = next((s for s in bs._intake.sessions if s.key[1] == number), None)
            if session and (session.current is None or session.current.choices is not None) and session.got:
                return

    await asyncio.wait_for(waiting(), 15)


async def test_a_coupled_round_of_a_closed_session_is_dropped_and_one_that_fails_closes_its_session(
    chooses: Chooses, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with station() as (bs, address), client(address) as one, client(address) as other:
        leaving = asyncio.create_task(decode(one, "coupled", coupled=True))
        assert await asyncio.to_thread(chooses.begun.wait, 30)
        for session in list(bs._intake.sessions):
            bs._intake.sessions.close(session.key)
        leaving.cancel()
        chooses.go.set()
        with monkeypatch.context() as patch:
            patch.setattr(coupled, "_choice", lambda *_: 1 / 0)
            with pytest.raises(ProtocolError, match="internal error: division by zero"):
                await decode(other, "coupled", coupled=True)
        assert bs.metrics()["failed_sessions"] == 1
        assert len(await decode(other, "coupled", coupled=True)) == 24 and bs.load == (0, 0)
