"""Exchanges of a session, with a base station in this process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from testbed.assets.fingerprints import SYNTHETIC
from testbed.clock import WallClock, within
from testbed.errors import LinkTimeout
from testbed.protocols.base import Drafted
from testbed.protocols.codec import AnyArray, Packet, pack_positions
from testbed.protocols.messages import Busy, Close, Draft, Hidden, Message, NeedHidden, Open, Opened, Resync, Verdict
from testbed.synthetic import next_token
from testbed.ue import exchange
from testbed.ue.client import Client
from testbed.ue.exchange import OutgoingWindow, SessionExchanges
from testbed.ue.waiting.mailbox import Mailbox
from testbed.ue.waiting.patience import LEAST_REST_S, Patience
from tests.support.answering import Link
from tests.support.stations import VOCAB, client, station

PROMPT = [1, 2, 3]


@pytest.mark.parametrize("sent", [True, False])
async def test_a_window_sent_ahead_reaches_a_session_that_was_set_back(
    sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the `Open` that came late took the session back to its prompt. A window whose guess fits nothing is not
    answered, and it was sent with its guess again and again, until the request timed out.
    """
    monkeypatch.setattr(exchange, "RESEND_S", 0.05)
    token = next_token(PROMPT, VOCAB, 0)
    ids = np.array([next_token([*PROMPT, token], VOCAB, 0), 5], np.int32)
    async with station() as (_, address), client(address, timeout_s=3.0) as ue:
        number = ue.new_session()

        async def open_(round_: int, prefix: list[int] | None = None) -> int:
            message = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=64, drafter=SYNTHETIC)
            return await ue.send(message, {"ids": np.array(prefix or [*PROMPT, token], np.int32)})

        def drafted(count: int) -> Drafted:
            return Drafted(ids[:count], np.zeros((count, 64), np.float16))

        exchanges = SessionExchanges(ue, number, open_, lambda busy: None, lambda drafted, asked: {})
        await open_(0, PROMPT)
        first = OutgoingWindow(Draft(session=number, round=0, base_len=3), {"ids": ids[:0]}, drafted(0), 0.0)
        assert (await exchanges.verdict(first)).verdict.token == token
        await open_(0, PROMPT)
        assert isinstance((await ue.receive(number, 5)).message, Opened)
        draft = Draft(session=number, round=1, base_len=4, guess=token)
        ahead = OutgoingWindow(draft, {"ids": ids}, drafted(2), 0.0)
        if sent:
            await exchanges.send(ahead)
        found = await exchanges.verdict(ahead)
        assert (found.verdict.round, found.verdict.accepted) == (1, 1)


async def test_patience_begins_anew_once_the_session_was_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait doubled with every loss, and kept on when the BS answered: one later loss took most of the timeout."""
    monkeypatch.setattr(exchange, "RESEND_S", 0.02)
    waits_s: list[float] = []
    async with station() as (_, address), client(address, timeout_s=20.0) as ue:
        number, send, receive, drafts = ue.new_session(), ue.send, ue.receive, itertools.count(1)

        async def lose(message: Message, arrays: dict[str, AnyArray] | None = None) -> int:
            return 0 if isinstance(message, Draft) and next(drafts) in (1, 2, 3, 4, 6) else await send(message, arrays)

        async def noted(session: int, wait_s: float) -> Packet[Any]:
            waits_s.append(wait_s)
            return await receive(session, wait_s)

        monkeypatch.setattr(ue, "send", lose)
        monkeypatch.setattr(ue, "receive", noted)

        async def open_(round_: int) -> int:
            message = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=64, drafter=SYNTHETIC)
            return await send(message, {"ids": np.array(PROMPT, np.int32)})

        exchanges = SessionExchanges(ue, number, open_, lambda busy: None, lambda drafted, asked: {})
        empty = Drafted(np.zeros(0, np.int32), np.zeros((0, 64), np.float16))
        window = OutgoingWindow(Draft(session=number, round=0, base_len=3), {"ids": empty.ids}, empty, 0.0)
        found = await exchanges.verdict(window)
    assert found.verdict.token == next_token(PROMPT, VOCAB, 0)
    assert next(drafts) == 8
    assert max(waits_s) > 8 * waits_s[0] and waits_s[-1] <= 2 * waits_s[0]


@pytest.mark.parametrize("opened", [True, False])
async def test_a_session_that_is_lost_again_is_opened_again_at_once(
    opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After losses, as many answers as drafts had been sent counted as answers to them: those to a session that was
    lost again, or whose opening was, were ignored, each for twice as long as the one before.
    """
    monkeypatch.setattr(exchange, "RESEND_S", 0.05)
    async with station() as (_, address), client(address, timeout_s=20.0) as ue:
        number, send, drafts, opens = ue.new_session(), ue.send, itertools.count(1), itertools.count(1)

        async def lose(message: Message, arrays: dict[str, AnyArray] | None = None) -> int:
            which = next(drafts)
            if which == 6 and opened:
                await send(Close(session=number))
            return 0 if which <= 4 else await send(message, arrays)

        monkeypatch.setattr(ue, "send", lose)

        async def open_(round_: int) -> int:
            if next(opens) == 1 and not opened:
                return 0
            message = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=64, drafter=SYNTHETIC)
            return await send(message, {"ids": np.array(PROMPT, np.int32)})

        exchanges = SessionExchanges(ue, number, open_, lambda busy: None, lambda drafted, asked: {})
        found = await exchanges.verdict(window_of(0, number))
    assert found.verdict.token == next_token(PROMPT, VOCAB, 0)
    assert next(drafts) == (8 if opened else 9)


class Postbox:
    """A client without a link: messages that wait from the beginning, and those that were sent."""

    def __init__(self, *waiting: Packet[Any]) -> None:
        self.timeout_s, self.clock, self.mail, self.sent = 5.0, WallClock(), Mailbox(), list[Message]()
        for packet in waiting:
            self.mail.put(packet)

    async def send(self, message: Message, arrays: dict[str, AnyArray] | None = None) -> int:
        self.sent.append(message)
        return 1

    async def receive(self, number: int, wait_s: float) -> Packet[Any]:
        return await self.mail.get(wait_s)

    def patience(self) -> Patience:
        return Patience(self.clock, self.timeout_s, lambda seconds: asyncio.sleep(0, False))


def exchanges_of(box: Postbox) -> SessionExchanges:
    return SessionExchanges(box, 1, lambda _: _sent(), lambda busy: None, lambda drafted, asked: {})  # type: ignore[arg-type]


async def _sent() -> int:
    return 1


def window_of(count: int, session: int = 1) -> OutgoingWindow:
    ids = np.zeros(count, np.int32)
    drafted = Drafted(ids, np.zeros((count, 64), np.float16))
    return OutgoingWindow(Draft(session=session, round=0, base_len=3), {"ids": ids}, drafted, 0.0)


def answered(round_: int = 0, bs_s: float = 0.0, base_len: int | None = None) -> Packet[Any]:
    verdict = Verdict(
        session=1, round=round_, accepted=0, token=1, candidates=0, queried=0, batch_size=1, queue_s=0.0, verify_s=0.0,
        judge_s=0.0, bs_s=bs_s, gap=0.0, base_len=base_len,
    )  # fmt: skip
    return Packet(verdict, {}, 1)


async def test_a_base_station_asks_once_for_hidden_states_each_time_that_it_receives_the_window() -> None:
    """Thousands of questions were answered in one turn of the event loop: 12.8 s of CPU with long windows."""
    question = Packet(NeedHidden(session=1, round=0, count=1), {"positions": pack_positions([0], 2)}, 1)
    box = Postbox(*[question] * 4000, answered())
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    await exchanges_of(box).verdict(window_of(2))
    beside.cancel()
    assert [type(one) for one in box.sent] == [Draft, Hidden]
    assert turns >= 4000


@pytest.mark.parametrize("bs_s", [-86_400.0, 86_400.0])
async def test_the_time_on_the_link_is_part_of_the_exchange_whatever_a_base_station_says(bs_s: float) -> None:
    found = await exchanges_of(Postbox(answered(bs_s=bs_s))).verdict(window_of(0))
    assert 0 <= found.link_s <= found.seconds < 5.0


@contextlib.asynccontextmanager
async def behind(link: Link) -> AsyncIterator[tuple[SessionExchanges, int]]:
    """Exchanges of a session with a base station that answers as a test says, and its number."""
    connection = Client(link, WallClock(), 1, 1.0)
    try:
        await connection.connect("", VOCAB)
        number = connection.new_session()
        opening = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=1)
        yield (
            SessionExchanges(
                connection, number, lambda _: connection.send(opening), lambda _: None, lambda drafted, asked: {}
            ),
            number,
        )
    finally:
        await connection.close()


async def test_a_bs_that_loses_the_session_again_and_again_is_named_with_its_reason() -> None:
    """Of a BS that had answered thousands of times, "did not answer within 3.4e-05 s" was said."""

    def answer(message: Open | Draft, number: int) -> Iterable[Any]:
        if isinstance(message, Draft):
            yield Resync(session=message.session, reason="no memory")

    link = Link(answer, (Open, Draft))
    async with behind(link) as (session, number):
        window = window_of(2)
        window.draft = replace(window.draft, session=number)
        with pytest.raises(LinkTimeout, match=r"did not go on within 1 s: it lost the session \(no memory\)"):
            await within(5.0, session.verdict(window))
    assert link.requests <= 2 * (2 + 1.0 / LEAST_REST_S)


async def test_a_bs_whose_verdicts_never_fit_is_not_asked_without_a_pause() -> None:
    """A stream was opened 2,700 times a second, each time with its whole prefix."""

    def answer(message: Open, number: int) -> Iterable[Any]:
        yield Opened(session=message.session, length=3)
        yield replace(answered(round_=5, base_len=99).message, session=message.session)

    link = Link(answer)
    async with behind(link) as (session, number):
        await session.open(0)
        with pytest.raises(LinkTimeout, match="within 1 s"):
            await within(5.0, session.listen(Draft(session=number, round=0, base_len=3), stream=True))
    assert link.requests <= 4 + 1.1 / LEAST_REST_S


async def test_a_bs_that_admits_late_has_the_whole_time_again() -> None:
    """A session was given up with the reason for which it had been refused before."""

    def answer(message: Open | Draft, number: int) -> Iterable[Any]:
        if number == 0:
            yield Busy(session=message.session, reason="full", retry_s=0.7)
        elif isinstance(message, Open):
            yield Opened(session=message.session, length=3)
        else:
            yield from (Resync(session=-1) for _ in range(30))
            yield replace(answered(base_len=3).message, session=message.session)

    link = Link(answer, (Open, Draft))
    async with behind(link) as (session, number):
        await session.open(0)
        window = window_of(0)
        window.draft = replace(window.draft, session=number)
        assert (await within(5.0, session.verdict(window))).verdict.token == 1


async def test_a_round_that_no_other_base_station_could_count_on_from_is_dropped() -> None:
    box = Postbox(answered(2**32 - 1, base_len=3), answered(7, base_len=3))
    found = await exchanges_of(box).listen(Draft(session=1, round=0, base_len=3))
    assert found.verdict.round == 7


async def test_a_base_station_counts_on_from_the_round_that_another_one_claimed() -> None:
    """After a round of 2³¹, every verdict of the honest one that took over was dropped."""
    box = Postbox(answered(2**31 + 1 + 2**12, base_len=3), answered(2**31 + 1, base_len=3))
    found = await exchanges_of(box).listen(Draft(session=1, round=2**31 + 1, base_len=3), stream=True)
    assert found.verdict.round == 2**31 + 1 + 2**12
    box = Postbox(answered(2**31 + 2 + 2**12, base_len=3), answered(2**31 + 1, base_len=3))
    found = await exchanges_of(box).listen(Draft(session=1, round=2**31 + 1, base_len=3), stream=True)
    assert found.verdict.round == 2**31 + 1
