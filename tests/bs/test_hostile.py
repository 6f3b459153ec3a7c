"""A base station among hostile UEs: it goes on, and honest UEs beside them get what they would have got.

`make fuzz` sends many messages: TESTBED_FUZZ says how many, TESTBED_FUZZ_SEED is the seed.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from msgspec import inspect

from testbed.bs.pending import Pending
from testbed.bs.scheduling.base import Fcfs
from testbed.errors import ProtocolError
from testbed.process.heap import loaded_heap_frozen
from testbed.protocols import TARGET_ONLY
from testbed.protocols.codec import decode_uplink, encode
from testbed.protocols.messages import VERSION, Downlink, Fault, Hello, Open
from testbed.protocols.ranges import RANGES
from testbed.synthetic import VOCAB
from testbed.tasks import cancel
from tests.support.heartbeat import Heartbeat, Stall, longest
from tests.support.hostile.direct import Sent, Wire, connected, errors, replayed, serving, shrunk
from tests.support.hostile.grid import CASES, Case, covering
from tests.support.hostile.honest import Witness
from tests.support.hostile.liar import KINDS, Known, Liar
from tests.support.hostile.station import besieged
from tests.support.hostile.values import described

MESSAGES = int(os.environ.get("TESTBED_FUZZ", "0"))
"""Number of messages of each long run, over all configurations."""
SEED = int(os.environ.get("TESTBED_FUZZ_SEED", "0"))
SHORT = 60
"""Number of messages of the short run, per configuration."""
LIARS, BURST = 4, 2
STALL_S = 0.1
"""Longest stall of the event loop, without the time in which the machine ran something else; for long runs alone."""
KEPT = 4000
"""Last messages that are kept, to find those at fault."""
ANSWERS = {kind.__name__ for kind in Downlink.__args__}  # type: ignore[attr-defined]
COMPARED = {"session", "token", "version", "vocab_size", "base_len", "hidden_bits", "Hidden.round"}
"""Numbers of messages that are compared with known ones, and nothing is computed with them."""


class Found(NamedTuple):
    """Outcome of a run."""

    answers: Counter[str]
    stall: Stall
    compared: int
    """Number of honest outputs."""


# ---------------------------------------------------------------- in this process, without sockets


async def lie(wire: Wire, liar: Liar, name: bytes, count: int, answers: Counter[str], beating: Heartbeat) -> None:
    """Send messages, and read what comes back."""
    for number in range(count):
        with beating.apart():
            frames = liar.frames()
        wire.put(name, frames)
        if number % BURST == 0:
            await wire.quiet()
        for packet in wire.heard(name):
            answers[type(packet.message).__name__] += 1
            liar.hear(packet)
            if isinstance(packet.message, Fault):
                assert packet.message.reason.isprintable() and len(packet.message.reason) <= 600


async def run(case: Case, seed: int, count: int, heads: Path, trace: deque[Sent]) -> Found:
    """Hostile UEs and an honest one in one configuration."""
    beating, answers = Heartbeat(), Counter[str]()
    async with serving(case.judging(heads), trace, **case.station()) as (bs, wire), connected(wire, b"honest") as ue:
        witness = Witness(ue)
        await witness.learn()
        liars = {f"liar-{i}".encode(): Liar(LIARS * seed + i, Known(sessions=range(1, 40))) for i in range(LIARS)}
        beat = asyncio.create_task(beating.beat())
        lying = asyncio.gather(
            *(lie(wire, liar, name, count // LIARS, answers, beating) for name, liar in liars.items())
        )
        try:
            await asyncio.gather(lying, witness.watch(lying.done))
        finally:
            await cancel(beat, lying)
        assert set(wire.to) <= {*liars, b"honest"}  # answers go to who spoke
        assert errors(bs) == 0
    return Found(answers, beating.stall, witness.compared)


def checked(case: Case, seed: int, count: int, heads: Path) -> Found:
    """Run, and if it fails, name the fewest messages that do it."""
    trace: deque[Sent] = deque(maxlen=KEPT)
    try:
        with loaded_heap_frozen():  # as in a process that serves
            return asyncio.run(run(case, seed, count, heads, trace))
    except Exception as exc:
        least = at_fault(list(trace), case, heads)
        raise AssertionError(f"{case.name}, seed {seed}: {exc!r}; at fault: {least or 'no messages alone'}") from exc


def at_fault(trace: Sequence[Sent], case: Case, heads: Path) -> list[str]:
    """The fewest messages that bring about an internal error; none if it does not come again."""

    def fails(part: Sequence[Sent]) -> bool:
        return asyncio.run(replayed(part, case.judging(heads), **case.station()))

    return [f"{peer!r} {read(frames)}" for peer, frames in shrunk(trace, fails)] if fails(trace) else []


def read(frames: Sequence[bytes]) -> str:
    """A message as text."""
    try:
        return str(decode_uplink(frames).message)
    except ProtocolError as exc:
        return f"refused: {exc}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile_messages_change_nothing_in_any_configuration(case: Case, tmp_path: Path) -> None:
    assert checked(case, SEED, SHORT, tmp_path).compared > 0


@pytest.mark.fuzz
@pytest.mark.skipif(not MESSAGES, reason="set TESTBED_FUZZ to the number of messages")
@pytest.mark.timeout(24 * 3600)
def test_many_hostile_messages_change_nothing_in_any_configuration(tmp_path: Path) -> None:
    found = {case.name: checked(case, SEED, MESSAGES // len(CASES), tmp_path) for case in CASES}
    summed(found)


def summed(found: dict[str, Found]) -> None:
    """Print and check the sum of several runs."""
    answers = sum((one.answers for one in found.values()), Counter[str]())
    worst = max(found, key=lambda name: found[name].stall.running_s)
    stall, outputs = longest(one.stall for one in found.values()), sum(one.compared for one in found.values())
    print(f"\n{MESSAGES} messages, seed {SEED}, {len(found)} configurations; {outputs} honest outputs equal")
    print(f"longest stall {stall} ({worst}); answers: {dict(answers.most_common())}")
    assert stall.running_s < STALL_S
    assert set(answers) >= ANSWERS


class FailsFor(Fcfs):
    """Cannot plan prompts of one token."""

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        if any(len(item.request.prefix) == 1 for item in pending):
            raise OverflowError("cannot convert float infinity to integer")
        return super().plan(pending, now_s)


def test_an_error_is_found_and_its_messages_are_few(tmp_path: Path) -> None:
    class Broken(Case):
        def station(self) -> dict[str, object]:
            return {"scheduler": FailsFor()}

    with pytest.raises(AssertionError, match=r"at fault: \[.*Open\(") as caught:
        checked(Broken("fcfs", "strict", None), 0, 600, tmp_path)
    assert str(caught.value).count("liar-") <= 2


# ---------------------------------------------------------------- on sockets, in a process of its own


@pytest.mark.parametrize("case", [case for case in covering() if case.judge == "strict"], ids=lambda case: case.name)
async def test_hostile_messages_change_nothing_in_a_process(case: Case, tmp_path: Path) -> None:
    found = await besieged(case, SEED, 400, LIARS, tmp_path)
    assert found.compared > 0 and found.failed == 0


@pytest.mark.fuzz
@pytest.mark.skipif(not MESSAGES, reason="set TESTBED_FUZZ to the number of messages")
@pytest.mark.timeout(24 * 3600)
def test_many_hostile_messages_change_nothing_in_a_process(tmp_path: Path) -> None:
    found = {}
    for case in CASES:
        folder = tmp_path / case.name
        folder.mkdir()
        one = asyncio.run(besieged(case, SEED, MESSAGES // len(CASES), LIARS, folder))
        assert one.failed == 0
        found[case.name] = Found(one.answers, one.stall, one.compared)
    summed(found)


# ---------------------------------------------------------------- what it found


async def test_a_ue_that_starts_anew_before_its_pass_leaves_no_empty_pass(tmp_path: Path) -> None:
    case = Case("fcfs", "strict", None)
    opening = Open(session=1, protocol=TARGET_ONLY, threshold=0.0, hidden_size=64, max_tokens=8, drafter="synthetic")
    async with serving(case.judging(tmp_path), **case.station()) as (bs, wire):
        for message, arrays in ((opening, {"ids": np.arange(23, dtype=np.int32)}), (Hello(VERSION, "", VOCAB), {})):
            wire.put(b"ue", [bytes(frame) for frame in encode(message, arrays)])
            await wire.quiet()
        assert errors(bs) == 0
        assert "0" not in bs.metrics()["batch_sizes"]


# ---------------------------------------------------------------- what it sends


def test_hostile_messages_reach_what_they_are_meant_to_reach() -> None:
    """They are neither all nonsense nor all sound, and they repeat."""
    liar, sound = Liar(0), Counter[str]()
    for _ in range(3000):
        sound[read(liar.frames()).partition("(")[0].partition(":")[0]] += 1
    assert all(sound[kind.__name__] > 10 for kind in KINDS)
    assert 300 < sound["refused"] < 2000
    first, second = Liar(5), Liar(5)
    assert [first.frames() for _ in range(50)] == [second.frames() for _ in range(50)]


def test_every_number_that_is_computed_with_has_a_range() -> None:
    """Its edges are then drawn; a new field is refused until somebody has bounded it."""
    found = set()
    for kind in KINDS:
        for field in described(kind).fields:
            types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
            if any(isinstance(one, inspect.IntType | inspect.FloatType) for one in types):
                bounded = field.name in RANGES.get(kind, {}) or field.name in COMPARED
                found |= set() if bounded else {f"{kind.__name__}.{field.name}"}
    assert found <= COMPARED
