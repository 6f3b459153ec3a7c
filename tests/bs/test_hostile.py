"""A base station among liars, on real sockets: it goes on, and honest UEs beside them get what they would have got.

`make fuzz` sends 100,000 messages: TESTBED_FUZZ says how many.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bs.engines.base import Share, VerifyRequest
from testbed.bs.engines.runner import EngineRunner
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.judging.base import Candidates
from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.base import Fcfs
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.slo import Slo
from testbed.bs.scheduling.window_hints import Windows
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.channel.link import new_identity
from testbed.clock import WallClock
from testbed.errors import ProtocolError
from testbed.optim.draft_window.controller import DEFAULT
from testbed.optim.pass_time import Coefficients
from testbed.protocols import PROTOCOLS, TARGET_ONLY, protocol
from testbed.protocols.codec import decode_downlink, decode_uplink
from testbed.protocols.messages import Downlink, Fault
from testbed.protocols.sampling import Sampling
from testbed.synthetic import next_token
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.hostile import Liar
from tests.support.stations import VOCAB, client, station

MESSAGES = int(os.environ.get("TESTBED_FUZZ", "3000"))
POSITIONS = 96
VICTIMS = range(1, 20)
"""Session numbers of the honest UEs."""
LIARS = 4
TIMES = Coefficients(1e-5, 1e-9, 1e-8, 1e-3)
SCHEDULERS = ("fcfs", "slo")


class Finite:
    """Judges by hidden states, and trusts that they are numbers."""

    def check(self, *_: Any) -> None:
        """Any drafter will do."""

    def needs_hidden(self, threshold: float) -> bool:
        return threshold > 0

    def judge(self, batch: Sequence[Candidates]) -> list[Any]:
        for window in batch:
            assert np.isfinite(window.drafter_hidden).all()
            assert window.drafter_hidden.shape[0] == len(window.draft_ids) == len(window.target_ids)
        return [np.zeros(len(window.draft_ids), np.bool_) for window in batch]


def own(prompt: list[int], length: int) -> list[int]:
    ids = list(prompt)
    for _ in range(length):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(prompt) :]


async def lie(address: str, liar: Liar, count: int) -> Counter[str]:
    """Send so many messages, and read what comes back."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTING_ID, new_identity())
    socket.connect(address)
    answers: Counter[str] = Counter()

    async def read() -> None:
        while True:
            message = decode_downlink(await socket.recv_multipart()).message
            answers[type(message).__name__] += 1
            liar.hear(message)
            if isinstance(message, Fault):
                assert message.reason.isprintable() and len(message.reason) <= 600

    reading = asyncio.create_task(read())
    try:
        for number in range(count):
            await socket.send_multipart(liar.frames())
            await asyncio.sleep(0.002 if number % 4 == 0 else 0)  # to hear what comes of it
        await asyncio.sleep(0.3)
        if reading.done():
            reading.result()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        socket.close(0)
        context.term()
    return answers


async def honest(address: str, lying: asyncio.Event) -> int:
    """Decode by every method until the liars have done; returns how many outputs were right, all of them."""
    right = 0
    async with client(address, timeout_s=60.0) as ue:
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
        drawn: dict[str, list[int]] = {}
        while not right or not lying.is_set():
            for kind in (*PROTOCOLS, TARGET_ONLY):
                prompt = [right % 7 + 1, 2, 3]
                if kind == TARGET_ONLY:
                    assert (await decode_remotely(ue, prompt, 20, ())).token_ids == own(prompt, 20)
                elif PROTOCOLS[kind].sampled:
                    session = DecodingSession(
                        ue, drafter, protocol(kind), FixedWindow(4), sampling=Sampling(0.7), seed=3
                    )
                    output = (await session.decode([1, 2, 3], 20, ())).token_ids
                    assert drawn.setdefault(kind, output) == output
                else:
                    session = DecodingSession(ue, drafter, protocol(kind), FixedWindow(4), threshold=0.5)
                    assert (await session.decode(prompt, 20, ())).token_ids == own(prompt, 20)
                right += 1
    return right


def options(scheduler: str) -> dict[str, Any]:
    """A scheduler, admission where it has one, and the window controller."""
    windows = Windows(DEFAULT, lambda: TIMES, vocab_size=VOCAB)
    if scheduler == "fcfs":
        return {"scheduler": Fcfs(), "windows": windows}
    estimator, admission = OnlineEstimator(TIMES), Admission(coefficients=TIMES, max_requests=256)
    return {"scheduler": Slo(coefficients=TIMES, cuts=True), "estimator": estimator, "admission": admission,
            "windows": windows}  # fmt: skip


@pytest.mark.fuzz
@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_liars_stop_nothing_and_change_nothing(scheduler: str) -> None:
    engine = SyntheticEngine(vocab_size=VOCAB, max_model_len=POSITIONS)
    table = SessionTable(per_peer=3, total=64, pending=32, tokens=4000)
    lying = asyncio.Event()
    async with station(engine, judge=Finite(), sessions=table, **options(scheduler)) as (bs, address):
        helping = asyncio.create_task(honest(address, lying))
        liars = [Liar(seed, VICTIMS, VOCAB) for seed in range(LIARS)]
        answers = await asyncio.gather(*(lie(address, liar, MESSAGES // LIARS) for liar in liars))
        lying.set()
        assert await asyncio.wait_for(helping, 120) > 0
        async with client(address) as after:
            assert len(await after.rtt_s(2)) == 2
        assert len(table) <= 64 and len(bs._queue) <= 32
        found = bs.metrics()
        assert found["failed_sessions"] == found["failed_updates"] == 0
    kinds = sum(answers, Counter[str]())
    print(f"\n{MESSAGES} hostile messages; answers: {dict(kinds.most_common())}")
    assert {"Opened", "Verdict", "Fault", "Resync", "Pong", "NeedHidden", "Busy"} <= set(kinds)


def read(frames: list[bytes]) -> str:
    """What the codec makes of a message."""
    try:
        return type(decode_uplink(frames).message).__name__
    except ProtocolError:
        return "refused"


def test_a_liar_reaches_what_it_is_meant_to_reach() -> None:
    """Its messages are neither all nonsense nor all sound, and they repeat."""
    liar = Liar(0, VICTIMS)
    sound = Counter[str]()
    for _ in range(3000):
        sound[read(liar.frames())] += 1
    assert all(sound[kind] > 10 for kind in ("Hello", "Open", "Draft", "Hidden", "Close", "Ping"))
    assert 300 < sound["refused"] < 2000
    first, second = Liar(5), Liar(5)
    assert [first.frames() for _ in range(50)] == [second.frames() for _ in range(50)]


# ---------------------------------------------------------------- one message after another, without a socket


class Straight(EngineRunner):
    """Passes at once."""

    def __init__(self, engine: SyntheticEngine) -> None:
        self._engine = engine

    def submit(self, request: VerifyRequest) -> None:
        self._engine.submit(request)

    async def step(self) -> list[Share]:
        return self._engine.step()

    def cached(self, session: str) -> None:
        return None

    async def judged(self, positions: int) -> None:
        return

    def release(self, session: str) -> None:
        self._engine.release(session)


class Wire:
    """A server link by hand."""

    def __init__(self) -> None:
        self.mail: asyncio.Queue[tuple[bytes, list[bytes]]] = asyncio.Queue()
        self.sent: list[tuple[bytes, Any]] = []

    async def recv(self) -> tuple[bytes, list[bytes]]:
        return await self.mail.get()

    async def send(self, peer: bytes, frames: Any) -> None:
        self.sent.append((peer, decode_downlink([bytes(f) for f in frames]).message))

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=3), data=st.data())
@settings(max_examples=25)
def test_whatever_comes_is_answered_to_who_sent_it_or_dropped(
    scheduler: str, seeds: list[int], data: st.DataObject
) -> None:
    """Messages of several liars in any order: no exception, answers well-formed, and only to who spoke."""
    liars = [(f"ue-{i}".encode(), Liar(seed, VICTIMS)) for i, seed in enumerate(seeds)]
    order = data.draw(st.lists(st.integers(0, len(liars) - 1), min_size=5, max_size=60))

    async def run() -> Wire:
        wire, engine = Wire(), SyntheticEngine(vocab_size=VOCAB, max_model_len=POSITIONS)
        intake = Intake(Offer("synthetic", "", VOCAB, 64, (), POSITIONS), SessionTable(per_peer=4, total=6, pending=2))
        bs = BaseStation(wire, Straight(engine), intake, judge=Finite(), clock=WallClock(), **options(scheduler))
        serving = asyncio.create_task(bs.serve())
        for i in order:
            peer, liar = liars[i]
            wire.mail.put_nowait((peer, liar.frames()))
            for _ in range(4):
                await asyncio.sleep(0)
        await asyncio.sleep(0.002)
        assert not serving.done() and wire.mail.empty()
        assert len(intake.sessions) <= 6
        found = bs.metrics()
        assert found["failed_sessions"] == found["failed_updates"] == 0
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return wire

    wire = asyncio.run(run())
    spoke = {liars[i][0] for i in order}
    assert {peer for peer, _ in wire.sent} <= spoke
    assert all(isinstance(message, Downlink) for _, message in wire.sent)
