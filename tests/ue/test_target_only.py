"""A UE that decodes by the target alone: how long it waits for a BS that answers but does not go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from testbed.clock import WallClock, within
from testbed.errors import LinkTimeout, ModelError, ProtocolError
from testbed.protocols.messages import Busy, Open, Opened, Resync, Verdict
from testbed.ue.client import Client
from testbed.ue.target_only import decode_remotely
from testbed.ue.waiting.patience import LEAST_REST_S
from tests.support.answering import WELCOME, Answer, Link

TIMEOUT_S, WAIT_S, TOKENS = 1.0, 15.0, 5


def token(request: Open, number: int) -> Verdict:
    return Verdict(
        session=request.session, round=number, accepted=0, token=7, candidates=0, queried=0, gap=1.0, batch_size=1,
        queue_s=0.0, verify_s=0.0, judge_s=0.0, bs_s=0.0,
    )  # fmt: skip


async def decode(answer: Answer) -> Any:
    link = Link(answer)
    client = Client(link, WallClock(), 1, TIMEOUT_S)
    try:
        await client.connect("", 16)
        return await within(WAIT_S, decode_remotely(client, [1, 2], TOKENS, ()))
    finally:
        await client.close()


def refuses(request: Open, number: int) -> Iterable[Any]:
    yield Busy(session=request.session, reason="full", retry_s=0.1)


def refuses_at_once(request: Open, number: int) -> Iterable[Any]:
    yield Busy(session=request.session, reason="full", retry_s=0.0)


def confirms(request: Open, number: int) -> Iterable[Any]:
    for _ in range(1000):
        yield Opened(session=request.session, length=2)


def forgets(request: Open, number: int) -> Iterable[Any]:
    yield Opened(session=request.session, length=2)
    yield Resync(session=request.session)


def begins_again(request: Open, number: int) -> Iterable[Any]:
    yield from (token(request, position) for position in range(3))
    yield Resync(session=request.session)


def repeats(request: Open, number: int) -> Iterable[Any]:
    yield from (token(request, 0) for _ in range(1000))


@pytest.mark.parametrize("answer", [refuses, refuses_at_once, confirms, forgets, begins_again, repeats])
async def test_a_bs_that_answers_but_does_not_go_on_is_waited_for_no_longer_than_a_silent_one(answer: Answer) -> None:
    before_s = asyncio.get_running_loop().time()
    with pytest.raises(LinkTimeout, match="full" if answer in (refuses, refuses_at_once) else "within 1 s"):
        await decode(answer)
    assert asyncio.get_running_loop().time() - before_s < 4 * TIMEOUT_S


async def test_a_bs_that_refuses_all_the_time_is_said_to() -> None:
    """The line said that it had refused for the last 0.1 s."""
    with pytest.raises(LinkTimeout, match=r"did not go on within 1 s: it refused \(full\)"):
        await decode(lambda request, _: [Busy(session=request.session, reason="full", retry_s=0.3)])


def skips(request: Open, number: int) -> Iterable[Any]:
    yield token(request, 9)


@pytest.mark.parametrize("answer", [refuses_at_once, forgets, skips])
async def test_a_request_that_is_refused_again_and_again_is_not_sent_without_a_pause(answer: Answer) -> None:
    link = Link(answer)
    client = Client(link, WallClock(), 1, TIMEOUT_S)
    await client.connect("", 16)
    with pytest.raises(LinkTimeout, match=r"did not go on within 1 s: it (refused|lost the session|answered, but)"):
        await within(WAIT_S, decode_remotely(client, [1, 2], TOKENS, ()))
    await client.close()
    assert link.requests <= 2 + TIMEOUT_S / LEAST_REST_S


async def test_each_progress_gives_the_bs_the_whole_time_again() -> None:
    """Refused, interrupted and slow, but all of it goes on."""

    def answer(request: Open, number: int) -> Iterable[Any]:
        if number < 6:
            yield Busy(session=request.session, reason="full", retry_s=0.1)
            return
        for position in range(number - 5):
            for _ in range(12):  # a quarter of a second
                yield Opened(session=request.session, length=2)
            yield token(request, position)
        yield Resync(session=request.session)

    assert (await decode(answer)).token_ids == [7] * TOKENS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token": 16}, "token 16, outside"),
        ({"token": -1}, "token -1, outside"),
        ({"accepted": 2}, "accepts 2 of 0 tokens"),
        ({"candidates": 1}, "1 candidates"),
    ],
)
async def test_what_is_no_token_of_the_vocabulary_is_refused(change: dict[str, int], words: str) -> None:
    """Token 2147483647 was recorded as the target's own, and -1 ended the run and each resumption."""
    with pytest.raises(ProtocolError, match=words):
        await decode(lambda request, number: [replace(token(request, 0), **change)])


async def test_tokens_are_held_against_the_vocabulary_of_the_ue() -> None:
    """A base station that announces a larger one than its UE has may not add its ids."""
    client = Client(Link(lambda request, _: [replace(token(request, 0), token=15)]), WallClock(), 1, TIMEOUT_S)
    await client.connect("", 12)
    with pytest.raises(ProtocolError, match="token 15, outside"):
        await within(WAIT_S, decode_remotely(client, [1, 2], TOKENS, ()))
    await client.close()


@pytest.mark.parametrize("change", [{"version": 99}, {"protocols": ()}, {"vocab_size": 0}])
async def test_a_bs_of_another_version_is_refused(change: dict[str, Any]) -> None:
    client = Client(Link(refuses, welcome=replace(WELCOME, **change)), WallClock(), 1, TIMEOUT_S)
    with pytest.raises(ModelError, match="the BS cannot be used"):
        await client.connect("", 1)
    await client.close()
