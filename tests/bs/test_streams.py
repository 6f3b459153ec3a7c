"""Sessions that the target decodes alone: tokens and records do not depend on how far ahead they are decoded."""

from __future__ import annotations

import asyncio
import itertools
import time

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.pending import Round
from testbed.bs.room import Load
from testbed.bs.sessions import Session, SessionTable
from testbed.bs.streams import MOST_AHEAD, ahead, join, joining, rounds_of
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.base import Window
from testbed.protocols.messages import Draft, Open, Opened, Verdict
from testbed.protocols.sampling import Sampling
from testbed.tasks import together
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.pace import ConstantPace
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.registry import HINTED
from testbed.ue.windows.stream_choice import StreamChoice
from tests.support.stations import VOCAB, client, station

TOKENS = 60


async def decode(kind: str, address: str, prompt: list[int], ends: tuple[int, ...] = ()) -> RequestRecord:
    """A request of a UE of its own."""
    async with client(address) as ue:
        if kind == "target-only":
            return await decode_remotely(ue, prompt, TOKENS, ends)
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
        return await DecodingSession(ue, drafter, protocol(kind), FixedWindow(4)).decode(prompt, TOKENS, ends)


@pytest.mark.parametrize(("number", "guess", "kept"), [(1, None, 2), (1, 9, 2), (1, 8, 1), (2, 9, 1)])
def test_a_window_replaces_those_that_it_does_not_continue(number: int, guess: int | None, kept: int) -> None:
    """The first one's last token is 9; a window after another token of the UE would be dropped with it.

    A window with a later number continues another one: verdicts name the first window and count tokens, by which the UE
    would take those of its window 1.
    """
    sessions = SessionTable()
    session = sessions.open((b"ue", 0), np.array([5, 6], np.int32), protocol("greedy"), 0.0, 8, 20)
    session.stream = 4
    for i, base_len, ids, before in ((0, 2, [7, 9], None), (number, 4, [1], guess)):
        round_ = Round(i, Window(np.array(ids, np.int32), None), None, 0.0, base_len=base_len, guess=before)
        join(sessions, session, round_)
    assert len(session.held) == kept
    session.append(np.array([7, 8], np.int32))
    joined = joining(sessions, session)
    assert (joined is None) == (kept == 2)


async def test_streams_beside_each_other_and_beside_rounds_with_drafts_say_the_same() -> None:
    prompts = [[3, 1, 4, 1, 5 + i] for i in range(3)]
    async with station() as (bs, address):
        alone = [await decode("greedy", address, prompt) for prompt in prompts]
        before = bs.metrics()["rounds"]
        streams = [decode("target-only", address, prompt) for prompt in prompts]
        drafted = [decode("greedy", address, prompt) for prompt in prompts]
        found = await together([*streams, *drafted])
        counted = bs.metrics()
    assert [record.token_ids for record in found] == [record.token_ids for record in alone] * 2
    assert counted["rounds"] - before == sum(len(record.rounds) for record in found)
    assert counted["passes"] <= counted["rounds"] and counted["pieces"] == 0


@pytest.mark.parametrize("kind", [kind for kind, entry in PROTOCOLS.items() if not entry.replaces])
async def test_a_session_that_drafts_no_more_says_what_the_target_says(kind: str) -> None:
    """Hints may tell a UE with any protocol to leave decoding to the BS."""
    async with station() as (bs, address), client(address) as ue:
        expected = (await decode("target-only", address, [2, 7])).token_ids
        opening = Open(session=ue.new_session(), protocol=kind, threshold=0.0, hidden_size=4, max_tokens=TOKENS,
                       window=4, alone=True)  # fmt: skip
        await ue.send(opening, {"ids": np.array([2, 7], np.int32)})
        assert isinstance((await ue.receive(opening.session, 5)).message, Opened)
        verdicts = [(await ue.receive(opening.session, 5)).message for _ in range(TOKENS)]
        tokens = [verdict.token for verdict in verdicts if isinstance(verdict, Verdict)]
        assert tokens == expected and bs.metrics()["failed_sessions"] == 0


async def test_a_stream_alone_takes_a_pass_and_has_a_record_for_each_token() -> None:
    async with station() as (bs, address):
        record = await decode("target-only", address, [2, 7])
        counted = bs.metrics()
    assert [round_.round for round_ in record.rounds] == list(range(TOKENS))
    assert counted["passes"] == counted["rounds"] == counted["batch_sizes"]["1"] == TOKENS
    assert counted["computed_tokens"] == 2 + TOKENS - 1
    assert all(round_.verify_s > 0 and round_.batch_size == 1 for round_ in record.rounds)


async def test_the_parts_of_a_streams_time_add_up_to_its_latency() -> None:
    """Tokens that were decoded ahead counted the passes after their own, too."""
    async with station() as (bs, address):
        record = await decode("target-only", address, [2, 7])
        assert bs.metrics()["passes"] == TOKENS
    parts = [r.link_s + r.queue_s + r.verify_s + r.judge_s + r.overhead_s for r in record.rounds]
    assert sum(parts) == pytest.approx(record.latency_s, rel=1e-3)


async def test_a_stream_ends_with_its_end_token() -> None:
    async with station() as (_, address):
        tokens = (await decode("target-only", address, [2, 7])).token_ids
    end = tokens[20]
    async with station(end_ids=(end,)) as (bs, address):
        record = await decode("target-only", address, [2, 7], (end,))
        assert record.token_ids == tokens[: tokens.index(end) + 1] and bs.rounds == len(record.token_ids)


@pytest.mark.parametrize("alone", [False, True])
async def test_a_stream_goes_on_after_an_end_token_if_its_ue_wants_more(alone: bool) -> None:
    """Under target-only, and under a protocol whose UE leaves decoding to the BS."""
    async with station() as (_, address):
        tokens = (await decode("target-only", address, [2, 7])).token_ids
    async with station(end_ids=(tokens[20],)) as (_, address), client(address) as ue:
        if alone:
            off = HINTED.make(4, None)
            off.hinted(0)
            drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
            record = await DecodingSession(ue, drafter, protocol("greedy"), off).decode([2, 7], TOKENS, ())
            assert sum(round_.drafted for round_ in record.rounds) == 0
        else:
            record = await asyncio.wait_for(decode_remotely(ue, [2, 7], TOKENS, ()), 8)
    assert record.token_ids == tokens and record.finish_reason == "length"


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_rounds_of_a_stream_share_the_time_of_its_passes(count: int) -> None:
    window = Window(np.zeros(0, np.int32), None)
    argmax, margin = np.arange(count, dtype=np.int32), np.linspace(1, 2, count, dtype=np.float32)
    found = VerifyResult(argmax, margin, np.zeros(0, np.float32), cached=10)
    round_ = Round(5, window, None, arrived_s=0.5, queue_s=0.5, verify_s=0.1 * count + 2.0, result=found)
    round_.new, round_.cached, round_.batch_size = 3 + count - 1, 10, 2
    rounds = list(rounds_of(round_, count, 1.0, 0.1 * count))
    assert [one.number for one in rounds] == list(range(5, 5 + count))
    assert [one.followed for one in rounds] == [True] * (count - 1) + [False]
    results = [one.result for one in rounds if one.result is not None]
    assert [result.argmax.tolist() for result in results] == [[token] for token in range(count)]
    assert [result.gap(0) for result in results] == margin.tolist()
    assert [one.verify_s for one in rounds] == pytest.approx([2.1] + [0.1] * (count - 1))
    assert [one.arrived_s for one in rounds] == pytest.approx([0.5] + [1.0 + 0.1 * i for i in range(1, count)])
    assert [(one.new, one.cached) for one in rounds] == [(3, 10)] + [(1, 12 + i) for i in range(1, count)]


def test_only_greedy_tokens_without_a_guarantee_are_decoded_ahead() -> None:
    def stream(wanted: int = 100) -> Session:
        session = Session((b"", 0), "a", np.ones(9, np.int32), 9, None, 0, 1)
        session.alone, session.wanted, session.got = True, wanted, 1
        return session

    empty, window = (Round(0, Window(np.zeros(size, np.int32), None), None, 0.0) for size in (0, 3))
    assert [ahead(stream(wanted), empty) for wanted in (100, 12, 9)] == [MOST_AHEAD, 2, 0]
    assert ahead(stream(), window) == 0
    drawn, promised, drafting, new, hinted = stream(), stream(), stream(), stream(), stream()
    drawn.sampling, promised.speed_tps, drafting.alone, new.got, hinted.hinted = Sampling(1.0), 5.0, False, 0, 8
    assert [ahead(session, empty) for session in (drawn, promised, drafting, new, hinted)] == [0] * 5


async def test_a_window_that_found_no_room_is_not_waited_for() -> None:
    """The target waited after the next one, which could not join: its UE, too, until it opened the session again."""
    async with station() as (_, address), client(address) as ue:
        own = (await decode_remotely(ue, [3, 1, 4], 12, ())).token_ids
        number = ue.new_session()
        opening = Open(
            session=number, protocol="greedy", threshold=0.0, hidden_size=8, max_tokens=12, alone=True, stream=4,
            endless=True,
        )  # fmt: skip
        await ue.send(opening, {"ids": np.array([3, 1, 4], np.int32)})
        for i in (0, 2):  # window 1 was refused
            ids, before = own[4 * i : 4 * i + 4], own[4 * i - 1] if i else 4
            draft = Draft(session=number, round=i, base_len=3 + 4 * i, guess=before, waits=True)
            await ue.send(draft, {"ids": np.array(ids, np.int32)})
        got: list[int] = []
        while len(got) < 12:
            message = (await ue.receive(number, 5)).message
            if isinstance(message, Verdict):
                got += [*own[len(got) : len(got) + message.accepted], message.token]
        assert got[:12] == own


@pytest.mark.parametrize("refused", [1, 3, 8])
async def test_a_stream_of_a_model_goes_on_after_a_window_that_found_no_room(
    refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows after it were dropped, and the target waited for their continuation, until the session was reopened."""
    calls = itertools.count(1)
    crowded = SessionTable.crowded

    def full(table: SessionTable, load: Load, peer: bytes, ahead: bool = False) -> str | None:
        return "full" if ahead and next(calls) == refused else crowded(table, load, peer, ahead)

    monkeypatch.setattr(SessionTable, "crowded", full)
    engine = SyntheticEngine(vocab_size=VOCAB)
    async with station(engine) as (bs, address), client(address) as ue:
        own = (await decode_remotely(ue, [3, 1, 4], TOKENS, ())).token_ids
        opened = bs._intake.sessions._opened
        session = DecodingSession(
            ue, SyntheticDrafter(vocab_size=VOCAB, alpha=0.99), protocol("greedy"), FixedWindow(4), lookahead="stream",
            pace=ConstantPace(ue.clock, 0.006), streams=StreamChoice(4, alone=False),
        )  # fmt: skip
        step = engine.step
        monkeypatch.setattr(engine, "step", lambda: time.sleep(0.03) or step())
        assert (await session.decode([3, 1, 4], TOKENS, ())).token_ids == own
        assert bs._intake.sessions._opened == opened + 1
