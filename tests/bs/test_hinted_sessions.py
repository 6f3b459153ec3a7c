"""Sessions whose hints turn drafting off and on: the output stays the target's own."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Offer
from testbed.bs.pending import Round
from testbed.bs.scheduling.hints import Hint
from testbed.bs.sessions import Session
from testbed.channel.link_model import Direction, constant
from testbed.experiments.deployment.profiled import ProfilePace, ProfileRunner
from testbed.experiments.deployment.virtual import VirtualDeployment
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.protocols import protocol
from testbed.protocols.messages import NO_HINT
from testbed.protocols.methods import Ahead
from testbed.synthetic import next_token
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.registry import HINTED
from testbed.virtual_time import run_virtually
from tests.support.hints import Unlearning
from tests.support.stations import VOCAB, client, station

PROFILE = Profile(name="t", about="", source="", draft=LinearDraft(per_token_s=0.01), verify=LinearVerify(base_s=0.02))
TOKENS = 150


class Flips(Unlearning):
    """Implements `WindowHints`: 0 or 4 now and then, at random."""

    def __init__(self, seed: int, share: float) -> None:
        self._random, self._share = np.random.default_rng(seed), share

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        changes = session.hinted and self._random.random() < self._share
        return Hint(int(self._random.choice([0, 4])) if changes else NO_HINT)


@pytest.mark.parametrize("lookahead", [0, 1])
async def test_hints_that_turn_drafting_off_and_on_lose_no_token(lookahead: Ahead) -> None:
    """With lookahead, the UE took the verdict of a token that was decoded ahead for the verdict of its next window."""
    async with station(windows=Flips(3, 0.2)) as (_, address), client(address) as ue:
        own = (await decode_remotely(ue, [2, 7], 600, ())).token_ids
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
        for _ in range(3):
            session = DecodingSession(ue, drafter, protocol("greedy"), HINTED.make(8, None), lookahead=lookahead)
            record = await session.decode([2, 7], 600, ())
            assert record.token_ids == own
            assert 0 < sum(round_.drafted > 0 for round_ in record.rounds) < len(record.rounds)


class Outage:
    """A UE's link that holds what comes and goes for some seconds, in order."""

    def __init__(self, link: Any, clock: Any) -> None:
        self._link, self._clock, self._until_s = link, clock, 0.0
        self._held: list[list[bytes]] = []

    def hold(self, seconds: float) -> None:
        """Hold everything from now on."""
        self._until_s = self._clock.time() + seconds

    async def send(self, frames: Any) -> int:
        """Send, or keep until the end of the outage."""
        whole = [bytes(frame) for frame in frames]
        if self._clock.time() >= self._until_s and not self._held:
            return int(await self._link.send(whole))
        self._held.append(whole)
        if len(self._held) == 1:
            asyncio.get_running_loop().call_later(self._until_s - self._clock.time(), self._start)
        return sum(map(len, whole))

    def _start(self) -> None:
        self._sending = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        while self._held:
            await self._link.send(self._held.pop(0))

    async def recv(self, timeout_s: float = 1e9) -> Any:
        """Receive, at the end of the outage at the earliest."""
        found = await self._link.recv(1e9)
        await asyncio.sleep(max(0.0, self._until_s - self._clock.time()))
        return found

    def close(self) -> None:
        """Close the link."""
        self._link.close()


class Held(Unlearning):
    """Implements `WindowHints`: off after each window; the verdict of round 10 turns drafting on, and is held up."""

    def __init__(self) -> None:
        self.first: str | None = None
        self.outage: Outage | None = None

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        self.first = self.first or session.name
        if not len(round_.window.ids) and session.name == self.first and round_.number == 10:
            assert self.outage is not None
            self.outage.hold(4.0)
            return Hint(4)
        return Hint(0)


@pytest.mark.parametrize("kind", ["greedy", "fh", "sh"])
@pytest.mark.parametrize("delay_s", [0.003, 0.03, 0.06])
def test_a_round_of_another_prefix_is_not_taken_for_the_awaited_one(kind: str, delay_s: float) -> None:
    """After an outage the session was opened again, and its numbers stood for rounds that began elsewhere: four tokens
    were missing.
    """

    async def decoded() -> list[int]:
        deployment, engine, hints = VirtualDeployment(), SyntheticEngine(vocab_size=VOCAB), Held()
        offer = Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions)
        runner = ProfileRunner(engine, PROFILE, deployment.clock)
        bs = deployment.base_station(runner, offer, windows=hints)
        ue = bs.connect((Direction(constant(delay_s=delay_s)), Direction(constant(delay_s=delay_s))))
        hints.outage = Outage(ue._link, deployment.clock)
        ue._link = hints.outage  # type: ignore[assignment]

        async def answer() -> list[int]:
            await ue.connect("", VOCAB)
            drafter, pace = SyntheticDrafter(vocab_size=VOCAB, alpha=0.95), ProfilePace(PROFILE, deployment.clock)
            session = DecodingSession(ue, drafter, protocol(kind), HINTED.make(4, None), pace=pace)
            return (await session.decode([3, 1, 2], TOKENS, ())).token_ids

        return await deployment.run(answer())

    own = [3, 1, 2]
    for _ in range(TOKENS):
        own.append(next_token(own, VOCAB, 0))
    assert run_virtually(decoded()) == own[3:]
