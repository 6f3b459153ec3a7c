"""Load on base stations, real or virtual: UEs that take requests in turn, open-loop and closed-loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from testbed.clock import Clock
from testbed.errors import BadInput
from testbed.protocols import protocol
from testbed.protocols.methods import Ahead
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.tasks import together
from testbed.ue.channel_state import UNKNOWN, ChannelState
from testbed.ue.client import Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.pace import Pace
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.session import DecodingSession, Progress
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.lookahead import Lookahead
from testbed.ue.windows.stream_choice import StreamChoice
from testbed.ue.windows.uploads import Uploads

T = TypeVar("T")


@dataclass(frozen=True)
class LoadUe:
    """One UE: its connection, and how it decodes."""

    client: Client
    drafter: Drafter
    policy: WindowPolicy | None
    """Draft windows; None: the target decodes alone."""
    pace: Pace
    end_ids: Sequence[int] = ()
    speed_tps: float | None = None
    """Token speed that it asks for; None: none."""
    accept_slower: bool = False
    protocol: str = "greedy"
    uploads: Uploads | None = None
    """See `DecodingSession`."""
    threshold: float = 0.0
    """θ"""
    sampling: Sampling = GREEDY
    seeds: Callable[[], int] = lambda: 0
    """Seed of each request's random numbers."""
    lookahead: Ahead = 0
    streams: StreamChoice | None = None
    """See `DecodingSession`."""
    chooser: Lookahead | None = None
    """See `DecodingSession`."""
    most_tokens: int | None = None
    """Longest response; None: as each request says."""
    state: ChannelState = UNKNOWN
    """What is known of its channel. Its `begin` is the caller's part, since it precedes the latency of a request."""

    async def decode(self, prompt: Sequence[int], tokens: int, progress: Progress | None = None) -> RequestRecord:
        """Decode at most `tokens` after a prompt. After every round, window policy and channel state observe it, and
        `progress` is called.
        """
        tokens = self.most_tokens or tokens
        if (policy := self.policy) is None:
            return await decode_remotely(
                self.client, prompt, tokens, self.end_ids, progress,
                speed_tps=self.speed_tps, accept_slower=self.accept_slower,
            )  # fmt: skip
        session = DecodingSession(
            self.client, self.drafter, protocol(self.protocol), policy, self.threshold, csi=self.state.now,
            pace=self.pace, sampling=self.sampling, seed=self.seeds(), speed_tps=self.speed_tps,
            accept_slower=self.accept_slower, lookahead=self.lookahead, streams=self.streams,
            uploads=self.uploads, chooser=self.chooser,
        )  # fmt: skip

        def seen(record: RoundRecord) -> None:
            policy.observe(record)
            self.state.observe(record)
            if progress:
                progress(record)

        return await session.decode(prompt, tokens, self.end_ids, seen)


class LoadRequest(NamedTuple):
    """One request of a load."""

    prompt: Sequence[int]
    tokens: int
    """Maximum length of the output."""
    at_s: float = 0.0
    """Arrival, in seconds after the start of the load."""
    step: int = 0
    """Index of its step in a load that rises in steps."""


@dataclass(frozen=True)
class Fleet:
    """UEs that take requests in turn."""

    ues: Sequence[LoadUe]
    clock: Clock

    async def decode(self, number: int, request: LoadRequest) -> RequestRecord:
        """Decode the load's request of this number."""
        return await self.ues[number % len(self.ues)].decode(request.prompt, request.tokens)


def poisson_arrivals(rates_rps: Sequence[float], counts: Sequence[int], random: np.random.Generator) -> list[float]:
    """Arrival times in seconds of a Poisson process, with `counts[i]` arrivals at rate `rates_rps[i]`."""
    gaps = [random.exponential(1 / rate, count) for rate, count in zip(rates_rps, counts, strict=True)]
    return np.cumsum(np.concatenate(gaps)).tolist()  # type: ignore[no-any-return]


async def open_loop(fleet: Fleet, requests: Sequence[LoadRequest]) -> list[tuple[RequestRecord, float]]:
    """Send every request when it arrives, whether or not earlier ones are answered, and wait for all.

    Returns:
        Each request's record and its latency in seconds from its arrival, in order.
    """
    clock = fleet.clock
    start_s = clock.time()

    async def serve(number: int, request: LoadRequest) -> tuple[RequestRecord, float]:
        due_s = start_s + request.at_s
        if due_s > clock.time():
            await clock.sleep(due_s - clock.time())
        record = await fleet.decode(number, request)
        return record, clock.time() - due_s

    return await together(serve(number, request) for number, request in enumerate(requests))


async def closed_loop(count: int, at_once: int, serve: Callable[[int], Awaitable[T]]) -> list[T]:
    """Serve `count` requests, `at_once` of them at any time; results by request number."""
    numbers, found = iter(range(count)), dict[int, T]()

    async def worker() -> None:
        for number in numbers:
            found[number] = await serve(number)

    await together(worker() for _ in range(at_once))
    return [found[number] for number in range(count)]


async def throughput_rps(fleet: Fleet, requests: Sequence[LoadRequest], at_once: int, drain: int) -> float:
    """Requests a second with `at_once` in progress; the first `at_once` / 2 and the last `drain` are discarded.

    Raises:
        BadInput: too few requests.
    """

    async def serve(number: int) -> float:
        await fleet.decode(number, requests[number])
        return fleet.clock.time()

    ended_s = sorted(await closed_loop(len(requests), at_once, serve))
    steady = ended_s[at_once // 2 : max(len(ended_s) - drain, at_once // 2 + 2)]
    if len(steady) < 2 or steady[-1] <= steady[0]:
        raise BadInput(f"{len(requests)} prompts are too few to keep {at_once} requests in progress; give more")
    return (len(steady) - 1) / (steady[-1] - steady[0])
