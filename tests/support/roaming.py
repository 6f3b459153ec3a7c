"""Base stations behind relays that can be disconnected, and a UE of all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.judging.base import Judge
from testbed.bs.server import BaseStation
from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.protocols import TARGET_ONLY, protocol
from testbed.protocols.codec import decode_uplink
from testbed.protocols.messages import Message
from testbed.protocols.methods import Ahead, run_method
from testbed.protocols.sampling import Sampling
from testbed.synthetic import next_token
from testbed.ue import failover
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.failover import FailoverClient
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.waiting.stations import StationLink, StationState
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.stream_choice import StreamChoice
from tests.support.relay import Relay, relay
from tests.support.stations import VOCAB, station

PROMPT = [3, 1, 4, 1, 5]
SILENCE_S = 0.5


def own(prompt: list[int], length: int) -> list[int]:
    """The target's own output."""
    ids = list(prompt)
    for _ in range(length):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(prompt) :]


class Site:
    """Base stations behind relays that can be disconnected."""

    def __init__(self) -> None:
        self.bss: list[BaseStation] = []
        self.relays: list[Relay] = []
        self.addresses: list[str] = []

    def rounds(self) -> list[int]:
        return [bs.rounds for bs in self.bss]

    def sessions(self) -> list[int]:
        return [len(bs._intake.sessions) for bs in self.bss]


class Slow(SyntheticEngine):
    """A slow drafter, so that disconnections occur within rounds."""

    def compute(self, batch: Any) -> Any:
        import time

        time.sleep(0.01)
        return super().compute(batch)


@contextlib.asynccontextmanager
async def site(count: int = 2, judges: Sequence[Judge] = ()) -> AsyncIterator[Site]:
    """Stations that run."""
    found = Site()
    async with contextlib.AsyncExitStack() as held:
        for number in range(count):
            judge = judges[number] if judges else None
            bs, address = await held.enter_async_context(station(Slow(vocab_size=VOCAB), judge=judge))
            between, address = await held.enter_async_context(relay(address))
            found.bss.append(bs)
            found.relays.append(between)
            found.addresses.append(address)
        yield found


@contextlib.asynccontextmanager
async def roaming(site: Site, timeout_s: float = 10.0, greet: bool = True) -> AsyncIterator[FailoverClient]:
    """A UE of all stations, which looks at them ten times as often as others."""
    identity = new_identity()
    links = [StationLink(address, ZmqLink(address, identity)) for address in site.addresses]
    client = FailoverClient(links, WallClock(), 1, timeout_s, SILENCE_S)
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(failover, "PROBE_S", 0.1)
        quick.setattr(failover, "STEADY_S", 0.3)
        try:
            if greet:
                await client.connect("", VOCAB)
            yield client
        finally:
            await client.close()


async def until(condition: Any, wait_s: float = 10.0) -> None:
    """Wait for a condition."""
    for _ in range(int(wait_s / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come about")


async def decode(
    client: FailoverClient,
    method: str,
    length: int,
    progress: Any = None,
    prompt: list[int] = PROMPT,
    theta: float = 0.0,
    lookahead: Ahead = 0,
) -> Any:
    """The record of one request."""
    if method == TARGET_ONLY:
        return await decode_remotely(client, prompt, length, (), progress)
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    sampling = run_method(method).sampling(Sampling(0.8))
    session = DecodingSession(
        client, drafter, protocol(method), FixedWindow(4), theta, sampling=sampling, seed=7, lookahead=lookahead,
        streams=StreamChoice(4, alone=lookahead is None),
    )  # fmt: skip
    return await session.decode(prompt, length, (), progress)


def intercept(station: StationState, take: Callable[[Message], bool], patch: pytest.MonkeyPatch) -> None:
    """Have `take` look at each message to a station; it says whether the message goes no further."""
    send = station.link.send

    async def sent(frames: Any) -> int:
        return 0 if take(decode_uplink([bytes(frame) for frame in frames]).message) else await send(frames)

    patch.setattr(station.link, "send", sent)
