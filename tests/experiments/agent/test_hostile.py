"""An agent among hostile lab machines that are on its list: it answers, stays in its folder, and goes on.

`make fuzz` sends many messages: TESTBED_FUZZ says how many, TESTBED_FUZZ_SEED is the seed.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

from testbed.experiments.agent.serve import Agent, AgentSetup
from testbed.protocols.codec import encode
from testbed.protocols.orders import VERSION, Call, Reports, Standing, decode_report
from testbed.tasks import cancel, together
from tests.support.heartbeat import Heartbeat, Stall
from tests.support.hostile.direct import Wire
from tests.support.hostile.lab import Lab

MESSAGES = int(os.environ.get("TESTBED_FUZZ", "0"))
SEED = int(os.environ.get("TESTBED_FUZZ_SEED", "0"))
SHORT, BURST = 600, 5
LAST = 1_000_007
"""Token of the last query."""
STALL_S = 0.1
"""Longest stall of the event loop, without the time in which the machine ran something else; for long runs alone."""
WAIT_S = 60.0
ANSWERS = {kind.__name__ for kind in Reports.__args__} - {"Chunk"}  # type: ignore[attr-defined]
"""All but what needs a finished order: no order is carried out here."""


async def answered(wire: Wire) -> None:
    """Wait for the answer to the last query; others may still come before it."""
    while True:
        message = decode_report(await wire.to[b"lab"].get()).message
        if isinstance(message, Standing) and message.token == LAST:
            return


async def run(workdir: Path, seed: int, count: int) -> tuple[Counter[str], Stall]:
    """Send messages; answers and the longest stall."""
    agent, wire, beating, lab = Agent(AgentSetup("", workdir), lambda _: None), Wire(), Heartbeat(), Lab(seed)
    answers = Counter[str]()
    serving = together([agent.listen(wire), agent.store(wire)])  # type: ignore[arg-type]
    listening = asyncio.ensure_future(serving)
    beat = asyncio.create_task(beating.beat())
    try:
        for number in range(count):
            wire.put(b"lab", lab.frames())
            await asyncio.sleep(0 if number % BURST else 0.002)  # chunks are stored in a thread
            for packet in wire.heard(b"lab", decode_report):
                answers[type(packet.message).__name__] += 1
                lab.hear(packet)
        wire.put(b"lab", [bytes(f) for f in encode(Call(version=VERSION, token=LAST))])
        answer = asyncio.create_task(answered(wire))
        await asyncio.wait({answer, listening}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        assert not listening.done(), f"the agent has ended: {listening.exception()!r}"
        assert answer.done()
    finally:
        await cancel(beat, listening)
    return answers, beating.stall


def left_behind(folder: Path, workdir: Path) -> set[Path]:
    """Files outside the agent's folder."""
    return {path for path in folder.rglob("*") if path != workdir and workdir not in path.parents}


def test_hostile_lab_machines_end_nothing_and_write_nowhere_else(tmp_path: Path) -> None:
    answers, _ = asyncio.run(run(tmp_path / "agent", SEED, SHORT))
    assert set(answers) >= ANSWERS
    assert left_behind(tmp_path, tmp_path / "agent") == set()


@pytest.mark.fuzz
@pytest.mark.skipif(not MESSAGES, reason="set TESTBED_FUZZ to the number of messages")
@pytest.mark.timeout(24 * 3600)
def test_many_messages_of_hostile_lab_machines(tmp_path: Path) -> None:
    answers, stall = asyncio.run(run(tmp_path / "agent", SEED, MESSAGES))
    print(f"\n{MESSAGES} messages, longest stall {stall}; answers: {dict(answers.most_common())}")
    assert stall.running_s < STALL_S
    assert left_behind(tmp_path, tmp_path / "agent") == set()
