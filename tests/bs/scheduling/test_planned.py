"""The scheduler that carries out a plan: nothing before the last arrival, then the batches in their order."""

from __future__ import annotations

import numpy as np

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import Pending
from testbed.bs.scheduling.base import Scheduler
from testbed.bs.scheduling.planned import Planned

PLAN = ((b"a", b"c"), (b"b",))


def item(ue: str, session: str = "1") -> Pending:
    ids = np.arange(4, dtype=np.int32)
    return Pending(VerifyRequest(f"{ue}/{session}", ids, ids), 0.0, 0, ue=ue.encode())


class Played:
    """A base station's view of a scheduler: plans, what follows, and the ends of sessions."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def plan(self, *ues: str, session: str = "1") -> str:
        pending = [item(ue, session) for ue in ues]
        batch = self.scheduler.plan(pending, 0.0)
        assert all(any(one is waiting for waiting in pending) for one in batch)
        self.scheduler = self.scheduler.after(pending, batch)
        return "".join(one.ue.decode() for one in batch)

    def end(self, name: str) -> bool:
        before, self.scheduler = self.scheduler, self.scheduler.ended(name)
        return self.scheduler is not before


def test_nothing_is_verified_before_the_last_request_has_arrived() -> None:
    cell = Played(Planned(PLAN))
    assert [cell.plan("a"), cell.plan("a", "c"), cell.plan("a", "c", "x")] == ["", "", ""]
    assert cell.plan("c", "b", "a") == "ac"


def test_batches_take_turns_and_wait_for_their_members() -> None:
    cell = Played(Planned(PLAN))
    assert [cell.plan("a", "b", "c"), cell.plan("b"), cell.plan("b", "c")] == ["ac", "b", ""]
    assert [cell.plan("a", "b", "c"), cell.plan("a", "c"), cell.plan("a", "b", "c")] == ["ac", "", "b"]


def test_who_has_ended_is_not_waited_for() -> None:
    cell = Played(Planned(PLAN))
    assert [cell.plan("a", "b", "c"), cell.plan("b")] == ["ac", "b"]
    assert cell.plan("c") == ""
    assert cell.end("a/1") and not cell.end("a/1") and not cell.end("x/7")
    assert cell.plan("c") == "c"
    assert cell.end("c/1")
    assert [cell.plan("b"), cell.plan("b")] == ["b", "b"]


def test_the_next_wave_begins_once_all_sessions_of_this_one_have_ended() -> None:
    cell = Played(Planned(PLAN))
    assert cell.plan("a", "b", "c") == "ac"
    assert cell.end("a/1") and cell.end("c/1")
    assert cell.plan("a", "b", "c", session="2") == ""  # session b/1 has not ended
    assert cell.plan("b") == "b"
    assert cell.end("b/1")
    assert cell.plan("a", "b", session="2") == ""
    assert cell.plan("a", "b", "c", session="2") == "ac"


def test_a_plan_does_not_change_what_planned_it() -> None:
    scheduler = Planned(PLAN)
    pending = [item(ue) for ue in "abc"]
    assert scheduler.plan(pending, 0.0) == scheduler.plan(pending, 1.0) == [pending[0], pending[2]]
    assert scheduler.after(pending, []) is scheduler and not scheduler.wave
