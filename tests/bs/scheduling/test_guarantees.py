"""Shares of the guarantees: no UE keeps others from theirs, and alone it gets all."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.base import Fcfs
from testbed.bs.scheduling.pass_ledger import PassLedger
from testbed.bs.sessions import Round, Session, SessionTable
from testbed.optim.pass_time import Coefficients
from testbed.protocols import protocol
from testbed.protocols.base import Window
from testbed.protocols.messages import Open

TIMES = Coefficients(1.4339e-4, 2.53e-9, 2.67e-6, 1.486e-2)
GATE = Admission(coefficients=TIMES, max_requests=16)


class Cell:
    """A session table with its ledger; sessions are opened as the base station does."""

    def __init__(self, ue_share: float) -> None:
        self.table = SessionTable(per_peer=1000, ue_share=ue_share)
        self.ledger = PassLedger(self.table, Fcfs(), admission=GATE)
        self.lost: list[Session] = []
        self.now_s = 0.0

    def open(self, ue: bytes, number: int, speed_tps: float) -> bool:
        self.now_s += 0.01
        message = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=4, speed_tps=speed_tps)
        if self.ledger.admit((ue, number), message, self.now_s, self.lost.append) is not None:
            return False
        self.table.open((ue, number), np.zeros(3, np.int32), protocol("greedy"), 0.0, 4, 9, speed_tps=speed_tps)
        self.table.hear((ue, number), self.now_s)
        return True

    def fill(self, ue: bytes, first: int = 0) -> int:
        return next(number for number in range(first, first + 500) if not self.open(ue, number, 8.0)) - first

    def held(self, ue: bytes) -> int:
        return sum(session.key[0] == ue for session in self.table)


def test_alone_a_ue_gets_all_guarantees_and_beside_others_its_share() -> None:
    cell = Cell(0.5)
    most = cell.fill(b"hog")
    assert most > 20
    assert all(cell.open(b"late", number, 8.0) for number in range(most // 4))
    assert cell.held(b"hog") + most // 4 <= most + 1
    assert [session.key[1] for session in cell.lost] == list(range(len(cell.lost)))  # the least recently heard first
    assert cell.table.fate((b"hog", 0)) == "the time of its guarantee was needed for other UEs"
    more = cell.fill(b"late", 1000)
    assert abs(cell.held(b"hog") - cell.held(b"late")) <= 2 and more > 0


def test_while_another_waits_nobody_gets_more_than_its_share() -> None:
    cell = Cell(0.5)
    most = cell.fill(b"a") // 2
    for number in range(most + 2):
        cell.open(b"b", number, 8.0)
    assert not cell.open(b"c", 0, 8.0) or cell.lost
    before = cell.held(b"a")
    cell.table.close((b"b", 1))
    cell.table.close((b"b", 2))
    assert cell.open(b"c", 1, 8.0)
    assert not cell.open(b"a", 900, 8.0) or cell.held(b"a") <= before + 1


def test_with_a_share_of_one_nothing_is_taken_back() -> None:
    cell = Cell(1.0)
    cell.fill(b"hog")
    assert not cell.open(b"late", 0, 8.0) and not cell.lost


def test_a_speed_that_is_never_possible_does_not_count_as_waiting() -> None:
    cell = Cell(0.5)
    assert not cell.open(b"greedy", 0, 1e6)
    most = cell.fill(b"a")
    alone = Cell(0.5)
    assert most == alone.fill(b"a") and not cell.lost


def test_sessions_that_verify_yield_last() -> None:
    """A UE kept all guarantees by never leaving its sessions idle."""
    cell = Cell(0.5)
    most = cell.fill(b"hog")
    for session in cell.table:
        if session.key[1] % 4:
            session.current = Round(0, Window(np.zeros(0, np.int32), None), None, cell.now_s)
    idle = sum(session.idle for session in cell.table)
    for number in range(idle + 3):
        assert cell.open(b"late", number, 8.0)
    assert [session.idle for session in cell.lost[:idle]] == [True] * idle
    assert 0 < len(cell.lost) - idle <= 3 and idle < most // 3


@pytest.mark.parametrize("ue_share", [0.2, 0.5])
def test_first_sessions_are_exempt(ue_share: float) -> None:
    cell = Cell(ue_share)
    cell.fill(b"a")
    for name in (b"b", b"c", b"d"):
        assert cell.open(name, 0, 8.0)
