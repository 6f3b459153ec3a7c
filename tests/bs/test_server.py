"""The round from end to end over a real socket, with the synthetic pair: outputs, batching, idempotency, refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.judging.base import Candidates
from testbed.bs.sessions import SessionTable
from testbed.channel.cost import Sizes
from testbed.errors import EngineError, LinkTimeout, ProtocolError
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.base import HEADER_DOWN_BYTES, HEADER_UP_BYTES
from testbed.protocols.messages import (
    VERSION,
    Busy,
    Close,
    Draft,
    Fault,
    Hello,
    NeedHidden,
    Open,
    Opened,
    Resync,
    Verdict,
)  # fmt: skip
from testbed.protocols.quantise import degrade, quantised
from testbed.synthetic import next_token
from testbed.ue.drafters.base import DraftToken
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, client, station

PROMPT = [3, 1, 4, 1, 5]


def targets_own(prompt: list[int], length: int) -> list[int]:
    """The synthetic target's greedy output, straight from its definition."""
    ids = list(prompt)
    for _ in range(length):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(prompt) :]


async def decode(
    address: str, kind: str, window: int, prompt: list[int], tokens: int = 40, alpha: float = 0.8, **how: object
) -> RequestRecord:
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=alpha)
    async with client(address) as connection:
        session = DecodingSession(connection, drafter, protocol(kind), FixedWindow(window), **how)  # type: ignore[arg-type]
        return await session.decode(prompt, tokens, ())


@pytest.mark.parametrize("kind", list(PROTOCOLS))
@pytest.mark.parametrize("window", [1, 2, 7, 8, 33, 64])
async def test_strict_outputs_are_the_targets_own(kind: str, window: int) -> None:
    async with station() as (_, address):
        record = await decode(address, kind, window, PROMPT)
    assert record.token_ids == targets_own(PROMPT, 40)
    assert record.finish_reason == "length"
    assert sum(r.committed for r in record.rounds) == 40


@pytest.mark.parametrize("kind", list(PROTOCOLS))
async def test_an_end_id_ends_the_output_wherever_it_stands(kind: str) -> None:
    own = targets_own(PROMPT, 40)
    end = own[17]
    expected = own[: own.index(end) + 1]
    async with station(end_ids=(end,)) as (_, address), client(address) as connection:
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.9)
        record = await DecodingSession(connection, drafter, protocol(kind), FixedWindow(8)).decode(PROMPT, 40, (end,))
        alone = await decode_remotely(connection, PROMPT, 40, (end,))
    assert record.token_ids == alone.token_ids == expected
    assert record.finish_reason == alone.finish_reason == "stop"


async def test_target_only_streams_the_targets_own() -> None:
    async with station() as (_, address), client(address) as connection:
        record = await decode_remotely(connection, PROMPT, 25, ())
    assert record.token_ids == targets_own(PROMPT, 25)
    assert [r.base_len for r in record.rounds] == list(range(5, 30))


@pytest.mark.parametrize("kind", list(PROTOCOLS))
async def test_bytes_at_the_socket_are_the_stated_payload_and_bounded_headers(kind: str) -> None:
    async with station() as (_, address):
        record = await decode(address, kind, 13, PROMPT, tokens=120, alpha=0.6)
    assert any(r.queried for r in record.rounds) == (kind in ("sh", "split"))
    for r in record.rounds:
        bits = protocol(kind).payload(r.drafted, r.queried, Sizes(hidden_size=64, vocab_size=VOCAB))
        up = r.uplink_bytes - bits.uplink_bits / 8
        down = r.downlink_bytes - bits.downlink_bits / 8
        assert 0 < up <= HEADER_UP_BYTES * bits.uplink_messages
        assert 0 < down <= HEADER_DOWN_BYTES * bits.downlink_messages


@pytest.mark.parametrize("size", [64, 97])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["fh", "sh"])
async def test_quantised_states_take_the_stated_bytes_and_change_no_strict_output(
    kind: str, bits: int, size: int
) -> None:
    sizes = quantised(Sizes(size), bits)
    async with station() as (_, address), client(address) as connection:
        drafter = SyntheticDrafter(vocab_size=VOCAB, hidden_size=size, alpha=0.6)
        session = DecodingSession(connection, drafter, protocol(kind), FixedWindow(13), hidden_bits=bits)
        record = await session.decode(PROMPT, 120, ())
    assert record.token_ids == targets_own(PROMPT, 120)
    for r in record.rounds:
        payload = protocol(kind).payload(r.drafted, r.queried, sizes)
        assert 0 < r.uplink_bytes - payload.uplink_bits / 8 <= HEADER_UP_BYTES * payload.uplink_messages
        assert 0 < r.downlink_bytes - payload.downlink_bits / 8 <= HEADER_DOWN_BYTES * payload.downlink_messages


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("kind", ["fh", "sh"])
async def test_the_judge_sees_the_states_as_they_travelled(kind: str, bits: int) -> None:
    drawn: list[np.ndarray] = []

    class Noted(SyntheticDrafter):
        def predict(self, prefix: Sequence[int], distributions: bool) -> DraftToken:
            token = super().predict(prefix, distributions)
            drawn.append(token.hidden)
            return token

    judge = KeepAll()
    async with station(judge=judge) as (_, address), client(address) as connection:
        drafter = Noted(vocab_size=VOCAB, alpha=0.5)
        session = DecodingSession(connection, drafter, protocol(kind), FixedWindow(8), threshold=1.0, hidden_bits=bits)
        await session.decode(PROMPT, 60, ())
    seen = np.concatenate([c.drafter_hidden for c in judge.seen]).astype(np.float32)
    arrived = {row.tobytes() for row in degrade(np.stack(drawn), bits)}
    assert len(seen) > 10
    assert all(row.tobytes() in arrived for row in seen)


async def test_sixteen_ues_share_passes() -> None:
    class Slow(SyntheticEngine):
        def compute(self, batch: list[VerifyRequest]) -> list[VerifyResult]:  # type: ignore[override]
            time.sleep(0.01)
            return super().compute(batch)

    prompts = [[i + 1, 2, 3] for i in range(16)]
    kinds = [list(PROTOCOLS)[i % len(PROTOCOLS)] for i in range(16)]
    async with station(Slow(vocab_size=VOCAB)) as (bs, address):
        records = await asyncio.gather(*(decode(address, k, 6, p) for k, p in zip(kinds, prompts, strict=True)))
    assert [r.token_ids for r in records] == [targets_own(p, 40) for p in prompts]
    assert bs.rounds == sum(len(r.rounds) for r in records)
    assert bs.metrics()["passes"] < bs.rounds / 2


async def test_a_session_that_waits_for_hidden_states_holds_up_no_other() -> None:
    async with station() as (_, address), client(address) as silent:
        number = silent.new_session()
        open_ = Open(session=number, protocol="sh", threshold=0.0, hidden_size=64)
        await silent.send(open_, {"ids": np.array(PROMPT, np.int32)})
        wrong = np.array([(targets_own(PROMPT, 1)[0] + 1) % VOCAB], np.int32)
        await silent.send(Draft(session=number, round=0, base_len=5), {"ids": wrong})
        assert isinstance((await silent.receive(number, 5)).message, Opened)
        asked = await silent.receive(number, 5)
        await silent.send(Draft(session=number, round=0, base_len=5), {"ids": wrong})
        again = await silent.receive(number, 5)
        assert isinstance(asked.message, NeedHidden) and again.message == asked.message
        np.testing.assert_array_equal(again.arrays["positions"], asked.arrays["positions"])
        record = await decode(address, "sh", 8, PROMPT)
    assert record.token_ids == targets_own(PROMPT, 40)


class KeepAll:
    """A judge that keeps every mismatch, to see that the seam is wired."""

    def __init__(self) -> None:
        self.seen: list[Candidates] = []

    def check(self, drafter: str, hidden_size: int, hidden_bits: int = 16, states: str = "predicting") -> None:
        pass

    def needs_hidden(self, threshold: float) -> bool:
        return True

    def judge(self, batch: list[Candidates]) -> list[np.ndarray]:
        self.seen += batch
        return [np.ones(len(c.draft_ids), np.bool_) for c in batch]


@pytest.mark.parametrize("kind", ["fh", "sh"])
async def test_a_judge_sees_both_hidden_states_and_can_keep_mismatches(kind: str) -> None:
    judge = KeepAll()
    async with station(judge=judge) as (_, address):  # type: ignore[arg-type]
        record = await decode(address, kind, 8, PROMPT, alpha=0.5)
    assert all(r.accepted == r.drafted for r in record.rounds)
    assert sum(len(c.draft_ids) for c in judge.seen) == sum(r.candidates for r in record.rounds) > 0
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.5)
    ids = PROMPT + record.token_ids
    first = judge.seen[0]
    assert first.target_hidden is not None and first.target_hidden.shape == (len(first.draft_ids), 64)
    position = next(i for i in range(5, len(ids)) if ids[i] != next_token(ids[:i], VOCAB, 0))
    np.testing.assert_array_equal(first.drafter_hidden[0], drafter.predict(ids[:position], False).hidden)


async def test_the_same_draft_again_gets_the_same_verdict_and_another_one_a_fault() -> None:
    async with station() as (bs, address), client(address) as connection:
        number = connection.new_session()
        open_ = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=64)
        await connection.send(open_, {"ids": np.array(PROMPT, np.int32)})
        draft, ids = Draft(session=number, round=0, base_len=5), np.array([1, 2], np.int32)
        await connection.receive(number, 5)
        verdicts = []
        for _ in range(2):
            await connection.send(draft, {"ids": ids})
            verdicts.append((await connection.receive(number, 5)).message)
        assert isinstance(verdicts[0], Verdict) and verdicts[0] == verdicts[1] and bs.metrics()["passes"] == 1
        await connection.send(draft, {"ids": ids + 1})
        assert isinstance((await connection.receive(number, 5)).message, Fault)


async def test_a_session_that_the_bs_forgot_is_opened_again_and_nothing_is_lost() -> None:
    async with station() as (bs, address), client(address) as connection:
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
        session = DecodingSession(connection, drafter, protocol("fh"), FixedWindow(4))
        forgotten = []

        def forget(record: object) -> None:
            if len(forgotten) < 3:
                forgotten.append(bs._intake.sessions._sessions.popitem())

        record = await session.decode(PROMPT, 40, (), forget)  # type: ignore[arg-type]
    assert len(forgotten) == 3
    assert record.token_ids == targets_own(PROMPT, 40)


class Failing(SyntheticEngine):
    """An engine whose first passes fail."""

    failures = 1

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        if self.failures:
            self.failures -= 1
            raise EngineError("out of memory")
        return super().compute(batch)


@pytest.mark.parametrize("kind", [*PROTOCOLS, "target-only"])
async def test_a_pass_that_fails_once_is_done_again(kind: str) -> None:
    async with station(Failing(vocab_size=VOCAB)) as (bs, address), client(address) as connection:
        if kind == "target-only":
            found = await decode_remotely(connection, PROMPT, 40, ())
        else:
            found = await decode(address, kind, 4, PROMPT)
    assert found.token_ids == targets_own(PROMPT, 40)
    assert bs.metrics()["failed_passes"] == 1


async def test_an_engine_that_fails_again_fails_its_requests_and_not_the_server() -> None:
    engine = Failing(vocab_size=VOCAB)
    engine.failures = 2
    async with station(engine) as (_, address):
        with pytest.raises(ProtocolError, match="out of memory"):
            await decode(address, "greedy", 4, PROMPT)
        assert (await decode(address, "greedy", 4, PROMPT)).token_ids == targets_own(PROMPT, 40)


async def test_who_sends_a_failed_round_again_is_told_so_again() -> None:
    engine = Failing(vocab_size=VOCAB)
    engine.failures = 2
    async with station(engine) as (_, address), client(address) as connection:
        number = connection.new_session()
        open_ = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=64)
        await connection.send(open_, {"ids": np.array(PROMPT, np.int32)})
        assert isinstance((await connection.receive(number, 5)).message, Opened)
        for _ in range(2):
            await connection.send(Draft(session=number, round=0, base_len=5), {"ids": np.array([1], np.int32)})
            answer = (await connection.receive(number, 5)).message
            assert isinstance(answer, Fault) and "out of memory" in answer.reason


async def test_a_request_that_breaks_its_pass_fails_alone() -> None:
    class Picky(SyntheticEngine):
        def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
            time.sleep(0.01)
            if any(request.prefix[0] == 7 for request in batch):
                raise EngineError("a seven")
            return super().compute(batch)

    prompts = [[i, 2, 3] for i in range(5, 13)]
    async with station(Picky(vocab_size=VOCAB)) as (_, address):
        found = await asyncio.gather(*(decode(address, "greedy", 4, p) for p in prompts), return_exceptions=True)
    for prompt, record in zip(prompts, found, strict=True):
        if prompt[0] == 7:
            assert isinstance(record, ProtocolError) and "a seven" in str(record)
        else:
            assert isinstance(record, RequestRecord) and record.token_ids == targets_own(prompt, 40)


@pytest.mark.parametrize(
    ("open_", "prompt", "reason"),
    [
        (Open(session=1, protocol="smoke", threshold=0.0, hidden_size=64), [1], "known: target-only, greedy"),
        (Open(session=1, protocol="fh", threshold=1.5, hidden_size=64), [1], "threshold"),
        (Open(session=1, protocol="fh", threshold=0.0, hidden_size=64), [VOCAB], "token ids"),
        (Open(session=1, protocol="fh", threshold=0.0, hidden_size=64), [-1], "token ids"),
        (Open(session=1, protocol="fh", threshold=0.0, hidden_size=64), [1] * 4096, "context"),
        (Open(session=1, protocol="target-only", threshold=0.0, hidden_size=64), [1], "max_tokens"),
    ],
)
async def test_an_open_that_cannot_be_served_gets_a_fault(open_: Open, prompt: list[int], reason: str) -> None:
    async with station() as (_, address), client(address) as connection:
        number = connection.new_session()
        assert number == 1
        await connection.send(open_, {"ids": np.array(prompt, np.int32)})
        answer = (await connection.receive(number, 5)).message
    assert isinstance(answer, Fault) and reason in answer.reason


async def test_drafts_out_of_turn_or_out_of_bounds() -> None:
    async with station() as (_, address), client(address) as connection:
        number = connection.new_session()

        async def draft(ids: list[int], round_: int = 0, base_len: int = 5) -> object:
            await connection.send(
                Draft(session=number, round=round_, base_len=base_len), {"ids": np.array(ids, np.int32)}
            )
            return (await connection.receive(number, 5)).message

        assert isinstance(await draft([1]), Resync)
        open_ = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=64)
        await connection.send(open_, {"ids": np.array(PROMPT, np.int32)})
        assert isinstance((await connection.receive(number, 5)).message, Opened)
        assert isinstance(await draft([1], base_len=4), Resync)
        assert "token ids" in (await draft([VOCAB])).reason  # type: ignore[attr-defined]
        assert "at most 256" in (await draft([1] * 257)).reason  # type: ignore[attr-defined]
        assert isinstance(await draft([1], round_=3), Verdict)
        await connection.send(Draft(session=number, round=2, base_len=5), {"ids": np.array([1], np.int32)})
        with pytest.raises(LinkTimeout):  # a copy that comes late: answered long ago
            await connection.receive(number, 0.3)
        await connection.send(Close(session=number))
        assert isinstance(await draft([1]), Resync)


async def test_a_closed_session_is_released_by_the_engine() -> None:
    class Remembering(SyntheticEngine):
        released: list[str]

        def release(self, session: str) -> None:
            self.released.append(session)

    engine = Remembering(vocab_size=VOCAB)
    engine.released = []
    async with station(engine) as (_, address):
        await decode(address, "greedy", 4, PROMPT)
        await asyncio.sleep(0.2)
    assert len(engine.released) == 1


async def test_sessions_are_bounded_per_peer() -> None:
    async with station(sessions=SessionTable(per_peer=2)) as (_, address), client(address) as connection:
        answers = []
        for _ in range(3):
            number = connection.new_session()
            open_ = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=64)
            await connection.send(open_, {"ids": np.array(PROMPT, np.int32)})
            answers.append(type((await connection.receive(number, 5)).message))
    assert answers == [Opened, Opened, Busy]


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(version=99, tokenizer="", vocab_size=VOCAB), "wire version"),
        (Hello(version=VERSION, tokenizer="", vocab_size=VOCAB + 1), "vocabulary mismatch"),
    ],
)
async def test_a_greeting_that_does_not_fit_is_refused(hello: Hello, reason: str) -> None:
    async with station() as (_, address), client(address) as connection:
        answer = (await connection.ask(hello)).message
    assert isinstance(answer, Fault) and reason in answer.reason


@pytest.mark.parametrize("again", [False, True])
async def test_a_greeting_ends_the_sessions_of_before_unless_it_only_asks(again: bool) -> None:
    async with station() as (bs, address), client(address) as connection:
        number = connection.new_session()
        opening = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=64)
        await connection.send(opening, {"ids": np.array(PROMPT, np.int32)})
        assert isinstance((await connection.receive(number, 5)).message, Opened)
        answer = (await connection.ask(Hello(version=VERSION, tokenizer="", vocab_size=VOCAB, again=again))).message
        assert answer == connection.welcome and len(bs._intake.sessions) == again


async def test_nobody_there_is_a_timeout_that_says_so() -> None:
    async with client("tcp://127.0.0.1:9", timeout_s=0.3, greet=False) as connection:
        with pytest.raises(LinkTimeout, match="is it running"):
            await connection.connect("", VOCAB)
