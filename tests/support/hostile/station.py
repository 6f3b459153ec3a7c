"""Hostile UEs and an honest one on the sockets of a base station process."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import zmq
import zmq.asyncio

from testbed.channel.frames import parts
from testbed.channel.link import new_identity
from testbed.clock import WallClock
from testbed.protocols.codec import decode_downlink
from testbed.tasks import cancel
from testbed.ue.dial import dial
from tests.faults.site import Station
from tests.support.heartbeat import Stall
from tests.support.hostile.direct import CHUNK_TOKENS, POSITIONS
from tests.support.hostile.grid import Case
from tests.support.hostile.honest import Witness
from tests.support.hostile.liar import Known, Liar

LIMITS = {
    "max-model-len": POSITIONS, "max-sessions-per-ue": 8, "max-sessions": 40, "max-pending": 32, "max-kv-tokens": 4000,
    "max-window": 64, "idle-s": 5, "chunk-tokens": CHUNK_TOKENS,
}  # fmt: skip
BURST = 8
"""Messages that a hostile UE sends before it waits for answers."""
BURST_MS, LAST_MS = 2, 300
"""Wait for an answer after a burst, and after the last message."""


class Besieged(NamedTuple):
    """Outcome of a process."""

    answers: Counter[str]
    stall: Stall
    compared: int
    """Number of honest outputs."""
    failed: int
    """Internal errors of the base station."""


async def besieged(case: Case, seed: int, count: int, liars: int, folder: Path) -> Besieged:
    """Send messages from several hostile UEs, while an honest one decodes; the process must then end as told.

    Raises:
        AssertionError: it died, or an honest output differs.
    """
    limits = [word for name, value in LIMITS.items() for word in (f"--{name}", str(value))]
    station = Station(folder, (*case.options(folder / "head"), *limits), slow_s=0.0, heartbeat=True)
    await station.start()
    ue = dial(station.address, None, WallClock(), 90.0, identity=b"honest")
    try:
        welcome = await ue.connect("", case.vocab_size)
        witness, answers = Witness(ue), Counter[str]()
        await witness.learn()
        known = Known(welcome.vocab_size, welcome.max_positions, sessions=range(1, 40))
        tellers = [Liar(liars * seed + i, known) for i in range(liars)]
        lying = asyncio.gather(*(lie(station.address, one, count // liars, answers) for one in tellers))
        try:
            await asyncio.gather(lying, witness.watch(lying.done))
        finally:
            await cancel(lying)
        await asyncio.sleep(0.3)  # the metrics are written ten times a second
        await station.stop()
    finally:
        await ue.close()
        assert station.child is not None
        await station.child.kill()
    beat, metrics = station.events("heartbeat")[-1], station.metrics()
    assert beat["frozen"] > 0  # what was loaded is left out of garbage collections
    failed = metrics["failed_sessions"] + metrics["failed_updates"] + sum(metrics["task_failures"].values())
    return Besieged(answers, Stall(*beat["stall"]), witness.compared, failed)


async def lie(address: str, liar: Liar, count: int, answers: Counter[str]) -> None:
    """Send messages in bursts, and read what comes back."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    for option, value in ((zmq.LINGER, 0), (zmq.ROUTING_ID, new_identity())):
        socket.setsockopt(option, value)
    socket.connect(address)
    try:
        for number in range(count):
            await socket.send_multipart(parts(liar.frames()))
            wait_ms = LAST_MS if number == count - 1 else BURST_MS if number % BURST == 0 else 0
            while await socket.poll(wait_ms):
                packet = decode_downlink(await socket.recv_multipart())
                answers[type(packet.message).__name__] += 1
                liar.hear(packet)
    finally:
        socket.close(0)
        context.term()
