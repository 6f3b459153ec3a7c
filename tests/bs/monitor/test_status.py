"""The line that a base station says every ten seconds."""

from __future__ import annotations

import asyncio

import pytest

from testbed.bs.monitor import status as module
from testbed.bs.monitor.status import StatusLine
from testbed.bs.observer import FinishedPass, Observer
from testbed.bs.sessions import SessionTable
from testbed.clock import WallClock
from testbed.optim.pass_time import RequestWork
from tests.bs.monitor.test_recent import one, opened, told


class Counting(Observer):
    """Counts what it is informed of."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def round(self, *_: object) -> None:
        self.seen.append("round")

    def passed(self, done: FinishedPass) -> None:
        self.seen.append("pass")

    def ended(self, *_: object) -> None:
        self.seen.append("ended")


def test_a_line_says_what_happened_since_the_last_one_and_the_next_observer_hears_of_it() -> None:
    table, further = SessionTable(), Counting()
    session, line = opened(table, 0), StatusLine(table, further)
    assert line.line(10.0) is None
    verdict = told()
    for _ in range(20):
        line.round(session, one(), verdict)
    for seconds in (0.01, 0.03):
        line.passed(FinishedPass([RequestWork(1, 1)], 1, 3, 0, 0.0, seconds, None))
    tokens = 2 * (verdict.accepted + (verdict.token >= 0))
    assert line.line(10.0) == f"1 session, 2.0 rounds/s, {tokens:.1f} tokens/s, 3.0 waiting, 20.0 ms a pass"
    assert line.line(10.0) is None
    line.ended(session)
    assert further.seen == ["round"] * 20 + ["pass"] * 2 + ["ended"]


def test_the_next_observer_hears_of_everything() -> None:
    assert {name for name in vars(Observer) if not name.startswith("_")} <= set(vars(StatusLine))


async def test_nothing_is_said_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.02)
    line, said = StatusLine(SessionTable()), []
    keeping = asyncio.create_task(line.keep(WallClock(), said.append))
    await asyncio.sleep(0.1)
    assert said == []
    line.passed(FinishedPass([RequestWork(1, 1)], 1, 1, 0, 0.0, 0.01, None))
    await asyncio.sleep(0.2)
    keeping.cancel()
    assert len(said) == 1 and "10.0 ms a pass" in said[0]
