"""Life of the UEs of a cell, in virtual and in real time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from testbed.channel.link_model import OneWay
from testbed.clock import Clock
from testbed.experiments.cell.config import UeGroup
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.deployment.load import LoadUe
from testbed.tasks import together
from testbed.ue.records import RequestRecord
from testbed.ue.windows.lookahead import Lookahead
from testbed.ue.windows.stream_choice import StreamChoice


def dice_of(seed: int, number: int) -> random.Random:
    """Random numbers of the UE of this number: the same in virtual and in real time."""
    return random.Random(f"ue {seed} {number}")


async def send_bytes(group: UeGroup, way: OneWay, clock: Clock, dice: random.Random) -> None:
    """Send messages without content, at a constant rate, for ever."""
    next_s = clock.time() + group.begin_s + dice.uniform(0, group.every_s)
    while True:
        await clock.sleep(max(0.0, next_s - clock.time()))
        way.carry(group.message_bytes, lambda: None)
        next_s += group.every_s


class Meeting:
    """Lets UEs wait until all of them are waiting.

    Python 3.10, which UEs may have, lacks `asyncio.Barrier`.
    """

    def __init__(self, ues: int) -> None:
        self._ues, self._waiting = ues, list[asyncio.Future[None]]()

    async def meet(self) -> None:
        """Return when all are waiting."""
        self._waiting.append(asyncio.get_running_loop().create_future())
        if len(self._waiting) < self._ues:
            await self._waiting[-1]
            return
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(None)


class Request(NamedTuple):
    """A requested response."""

    ids: Sequence[int]
    """Prompt."""
    tokens: int
    began_s: float
    """Arrival on the clock."""
    ended: Callable[[RequestRecord], None]
    """Counts its end."""


def streams_of(group: UeGroup) -> StreamChoice | None:
    """What the streams of a UE are chosen by; None: it has none, also where recorded drafts end too early for them."""
    if group.drafts is not None or group.lookahead not in (None, "stream"):
        return None
    return StreamChoice(group.window, alone=group.lookahead is None)


def lookahead_of(group: UeGroup) -> Lookahead | None:
    """Lookahead of all responses of a UE that follows hints; None: each response has that of the group."""
    if not group.lookahead_hints or not isinstance(group.lookahead, int):
        return None
    return Lookahead(group.lookahead, hinted=True)


def drawn_lengths(group: UeGroup) -> Callable[[random.Random], tuple[int, int]]:
    """Draws the tokens of a prompt and of its response, uniform in the group's bounds."""
    return lambda dice: (dice.randint(*group.prompt), dice.randint(*group.response))


async def decode_responses(
    group: UeGroup,
    ue: LoadUe,
    tally: UeTally,
    clock: Clock,
    dice: random.Random,
    prompt: Callable[[int], Sequence[int]],
    lengths: Callable[[random.Random], tuple[int, int]],
    seen: Callable[[Any, RequestRecord], object] = lambda prompt, record: None,
    meet: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Decode one response at a time, for ever: requests come after a pause, together with those of other UEs, or at
    random and wait for their turn.

    Args:
        prompt: makes a prompt of a length.
        lengths: draws the tokens of a prompt and of its response.
        seen: called with every prompt and its record.
        meet: awaited before each request; returns once all UEs that send together are waiting.
    """

    def requested() -> Request:
        length, tokens = lengths(dice)
        return Request(prompt(length), tokens, clock.time(), tally.response(tokens, group.class_tps))

    async def answer(request: Request) -> None:
        tally.start(request.began_s, group.class_tps)
        record = await ue.decode(request.ids, request.tokens, tally.round)
        request.ended(record)
        seen(request.ids, record)

    if group.rate_rps is None:
        while True:
            await ue.state.begin()
            if meet is not None:
                await meet()
            await answer(requested())
            await clock.sleep(group.think_s)
    await _in_turn(lambda: clock.sleep(dice.expovariate(group.rate_rps or 1.0)), requested, ue.state.begin, answer)


async def _in_turn(
    gap: Callable[[], Awaitable[None]],
    requested: Callable[[], Request],
    begin: Callable[[], Awaitable[None]],
    answer: Callable[[Request], Awaitable[None]],
) -> None:
    """Answer requests one after the other, in order of arrival, for ever; `begin` is awaited before each answer."""
    waiting: asyncio.Queue[Request] = asyncio.Queue()

    async def arrive() -> None:
        while True:
            await gap()
            waiting.put_nowait(requested())

    async def serve() -> None:
        while True:
            request = await waiting.get()
            await begin()
            await answer(request)

    await together([arrive(), serve()])
