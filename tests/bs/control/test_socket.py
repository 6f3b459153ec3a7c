"""The socket between a base station and the controller of a cell."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import unittest.mock
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.bs.control import hints, station
from testbed.bs.control.client import ControlledStation
from testbed.bs.control.hints import DecidedHints
from testbed.bs.control.messages import MOST_BYTES, Decided, Decisions, Event, RoundSeen, SessionEnded
from testbed.bs.control.station import ControlSocket, controlled
from testbed.bs.engines.base import VerifyResult
from testbed.bs.monitor.wire import frame
from testbed.bs.pending import Round
from testbed.bs.scheduling.hints import Hint
from testbed.bs.sessions import Session
from testbed.config import ServeConfig
from testbed.errors import BadInput, TestbedError
from testbed.protocols import protocol
from testbed.protocols.base import Window
from testbed.tasks import cancel

NAME = b"ue-0"
COUNTERS = {"passes": 7, "busy_s": 0.25, "rounds": 9}
KNOWN = {NAME, b"other"}
"""UEs with a session."""


def session(number: int = 1) -> Session:
    """A session that asks for hints of windows up to 6 and of protocols."""
    made = Session((NAME, number), "s", np.zeros(9, np.int32), 5, protocol("sh"), 0.0, 4)
    made.hinted, made.protocol_hints, made.lookahead_hints = 6, True, True
    return made


def round_() -> Round:
    """A round of four tokens, of which the first and the third are the target's."""
    made = Round(1, Window(np.ones(4, np.int32), None), None, 0.0)
    argmax = np.array([1, 2, 1, 2, 1], np.int32)
    made.result = VerifyResult(argmax, np.zeros(5, np.float32), np.zeros(4, np.float32))
    made.draft_s, made.cached = 0.5, 30
    return made


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncIterator[ControlSocket]:
    """A base station's end that serves."""
    with controlled(ServeConfig(engine="synthetic", controller=str(path))) as control:
        assert control is not None
        running = asyncio.create_task(control.serve(lambda: COUNTERS, KNOWN.__contains__))
        try:
            yield control
        finally:
            await cancel(running)


async def until(found: Any) -> None:
    """Wait until it is so."""
    for _ in range(1000):
        if found():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 10 s")


def hinted(control: ControlSocket) -> Hint:
    """What the next verdict hints."""
    return control.hints.hint(session(), round_(), 1, 0.0)


async def test_rounds_are_told_and_decisions_are_hinted(tmp_path: Path) -> None:
    told: list[Event] = []
    async with serving(tmp_path / "c") as control:
        assert hinted(control) == Hint()  # nobody is told
        bs = await ControlledStation.connect(tmp_path / "c", told.append)
        running = asyncio.create_task(bs.run())
        bs.decide(Decisions({NAME: Decided(9, "fh", 2.5, 0.5, 0.25, 1), b"other": Decided(2)}))
        await until(lambda: control.hints.worths)
        assert control.hints.worths == {NAME: 2.5, b"other": 1.0} and control.hints.weight(session()) == 0.5
        assert hinted(control) == (6, "fh", 1)  # no more than it asked for
        judged, strict = session(), session()
        judged.threshold, strict.threshold = 0.5, 0.1
        assert [control.hints.threshold(one) for one in (judged, strict)] == [0.25, 0.1]  # nor a higher one
        control.hints.ended(session())
        await until(lambda: len(told) == 2)
        assert told == [RoundSeen(NAME, 1, 4, 1, 30, 0.5, candidates=2), SessionEnded(NAME, 1)]
        assert bs.metrics() == {"passes": 7, "busy_s": 0.25}
        bs.close()
        await until(lambda: hinted(control) == Hint())  # decisions end with the connection
        assert not control.hints.worths
        with pytest.raises(TestbedError, match="disconnected its controller"):
            await running


def test_the_time_between_rounds_of_a_session_is_told() -> None:
    told: list[Event] = []
    hints = DecidedHints(told.append)
    for number, arrived_s in ((1, 5.0), (2, 6.0), (1, 7.5), (1, 7.0)):
        made = round_()
        made.arrived_s = arrived_s
        hints.hint(session(number), made, 1, 8.0)
    hints.ended(session(1))
    hints.hint(session(1), round_(), 1, 9.0)
    assert [one.period_s for one in told if isinstance(one, RoundSeen)] == [0.0, 0.0, 2.5, 0.0, 0.0]


def test_a_ue_that_asks_for_no_hints_gets_none() -> None:
    decided = DecidedHints(lambda event: None)
    decided.apply(Decisions({NAME: Decided(3, "fh")}))
    one = session()
    one.hinted, one.protocol_hints, one.lookahead_hints = 0, False, False
    assert decided.hint(one, round_(), 1, 0.0) == Hint()


@pytest.mark.parametrize(("kind", "told"), [("greedy", 0), ("split", 1)])
def test_a_ue_that_draws_tokens_itself_keeps_drafting(kind: str, told: int) -> None:
    decided = DecidedHints(lambda event: None)
    decided.apply(Decisions({NAME: Decided(0)}))
    one = session()
    one.protocol = protocol(kind)
    assert decided.hint(one, round_(), 1, 0.0).window == told


@pytest.mark.parametrize(
    "sent",
    [b"\xff\xff\xff\xff", (MOST_BYTES + 1).to_bytes(4, "little"), b"\x01\x00\x00\x00\xc1",
     frame(Decisions({NAME: Decided(-2)})), frame(Decisions({NAME: Decided(2**20)})),
     frame(Decisions({NAME: Decided(1, "nowhere")})), frame(Decisions({NAME: Decided(worth=float("nan"))})),
     frame(Decisions({NAME: Decided(weight=-1.0)})), frame(Decisions({NAME: Decided(threshold=1.5)})),
     frame(Decisions({NAME: Decided(lookahead=2)})),
     frame(SessionEnded(NAME, 1))],
)  # fmt: skip
async def test_what_cannot_be_hinted_ends_the_connection(
    tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier decisions end with it, and another controller may come."""
    async with serving(tmp_path / "c") as control:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "c")
        writer.write(frame(Decisions({NAME: Decided(3)})))
        await until(lambda: hinted(control).window == 3)
        writer.write(sent)
        await asyncio.wait_for(reader.read(), 10)
        await until(lambda: hinted(control) == Hint())
        writer.close()
        assert [one.levelno for one in caplog.records] == [logging.WARNING]
        bs = await ControlledStation.connect(tmp_path / "c", lambda event: None)
        bs.decide(Decisions({NAME: Decided(2)}))
        await until(lambda: hinted(control).window == 2)
        bs.close()


async def test_a_second_controller_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "c") as control:
        first = await ControlledStation.connect(tmp_path / "c", lambda event: None)
        first.decide(Decisions({NAME: Decided(3)}))
        await until(lambda: hinted(control).window == 3)
        second = await ControlledStation.connect(tmp_path / "c", lambda event: None)
        with pytest.raises(TestbedError, match="disconnected its controller"):
            await asyncio.wait_for(second.run(), 10)
        assert hinted(control).window == 3
        first.close()
        second.close()


async def test_refusals_of_second_controllers_do_not_fill_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each was a line."""

    async def refused() -> None:
        for _ in range(20):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "c")
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    async with serving(tmp_path / "c") as control:
        first = await ControlledStation.connect(tmp_path / "c", lambda event: None)
        first.decide(Decisions({NAME: Decided(3)}))
        await until(lambda: hinted(control).window == 3)
        await refused()
        assert [one.getMessage() for one in caplog.records] == ["a second controller was refused: one is connected"]
        monkeypatch.setattr(station, "WARNED_S", 0.0)  # a minute later
        await refused()
        assert len(caplog.records) == 21
        first.close()


async def test_a_controller_that_floods_leaves_others_their_turns(tmp_path: Path) -> None:
    """All messages that had arrived were handled at once; honest rounds took 1.5 s instead of 50 ms."""
    async with serving(tmp_path / "c") as control:
        reader = asyncio.StreamReader()
        reader.feed_data(frame(Decisions({})) * 20_000 + frame(Decisions({NAME: Decided(3)})))
        reader.feed_eof()
        writer = unittest.mock.Mock()
        flood = asyncio.create_task(control._serve(reader, writer))
        turns = 0
        while not flood.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 20_000


async def test_decisions_for_unknown_ues_are_not_kept(tmp_path: Path) -> None:
    """Made-up identities filled the memory."""
    async with serving(tmp_path / "c") as control:
        bs = await ControlledStation.connect(tmp_path / "c", lambda event: None)
        for first in range(0, 20_000, 10_000):
            bs.decide(Decisions({b"%d" % n: Decided(2) for n in range(first, first + 10_000)}))
        bs.decide(Decisions({b"unknown": Decided(2), NAME: Decided(3)}))
        await until(lambda: hinted(control).window == 3)
        assert list(control.hints.worths) == [NAME] and list(control.hints._decided) == [NAME]
        bs.close()


def test_decisions_outlive_sessions_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A UE's next response begins with what was decided in the last one."""
    monkeypatch.setattr(hints, "MOST_DECIDED", 2)
    present = {NAME, b"1"}
    decided = DecidedHints(lambda event: None, present.__contains__)
    decided.apply(Decisions({NAME: Decided(3), b"1": Decided(3)}))
    present.remove(NAME)
    decided.apply(Decisions({NAME: Decided(2)}))
    assert decided.hint(session(), round_(), 1, 0.0).window == 2
    present.add(b"2")
    decided.apply(Decisions({b"2": Decided(3)}))
    assert decided.hint(session(), round_(), 1, 0.0).window == -1


async def test_a_controller_that_reads_nothing_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it leaves unread is held in memory."""
    monkeypatch.setattr(station, "MOST_UNREAD", 10_000)
    async with serving(tmp_path / "c") as control:
        _, writer = await asyncio.open_unix_connection(tmp_path / "c", limit=1)
        writer.write(frame(Decisions({NAME: Decided(3)})))
        await until(lambda: hinted(control).window == 3)
        for _ in range(100_000):
            if hinted(control).window != 3:
                break
            await asyncio.sleep(0)
        assert hinted(control).window == -1 and "reads too slowly" in caplog.text
        writer.close()


def test_two_deciders_of_windows_are_refused(tmp_path: Path) -> None:
    config = ServeConfig(engine="synthetic", controller=str(tmp_path / "c"))
    both = msgspec.structs.replace(config, window_controller="on")
    with pytest.raises(BadInput, match="both decide windows"), controlled(both):
        pass


async def test_no_base_station_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="no base station listens at"):
        await ControlledStation.connect(tmp_path / "c", lambda event: None)
