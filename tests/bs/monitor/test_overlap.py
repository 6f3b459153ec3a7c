"""What the base station notes of drafting ahead, against the records of the UE, in virtual time."""

from __future__ import annotations

import pytest

from testbed.bs.monitor.recent import Recent
from testbed.bs.monitor.record_ring import rounds
from testbed.bs.sessions import SessionTable
from tests.ue import test_lookahead as ahead
from tests.ue import test_model_streams as streams


@pytest.mark.parametrize("alpha", [0.5, 0.8, 1.0])
@pytest.mark.parametrize("rtt_s", [0.02, 0.3])
def test_with_lookahead_overlap_is_the_time_that_the_ue_calls_hidden(alpha: float, rtt_s: float) -> None:
    sessions = SessionTable()
    recent = Recent(sessions)
    ((record,), _) = ahead.serve([ahead.Ue(alpha=alpha, rtt_s=rtt_s, tokens=200)], sessions, observer=recent)
    notes, tally = rounds(recent.look(0, 0, 0.0)), recent.tally()
    hidden_s = [r.hidden_s for r in record.rounds]  # a UE does not know the link before its first verdict
    assert [note.overlap_s for note in notes[2:]] == pytest.approx(hidden_s[2:], abs=2e-3)
    assert [note.used for note in notes] == [r.drafted if r.hidden_s else 0 for r in record.rounds]
    assert tally.overlap_s == pytest.approx(sum(note.overlap_s for note in notes)) and tally.overlap_s > 0
    assert (tally.ahead > tally.used) == (alpha < 1)


def test_without_lookahead_nothing_comes_ahead() -> None:
    sessions = SessionTable()
    recent = Recent(sessions)
    ahead.serve([ahead.Ue("sh", lookahead=0)], sessions, observer=recent)
    tally = recent.tally()
    assert (tally.ahead, tally.used, tally.overlap_s) == (0, 0, 0.0)


@pytest.mark.parametrize("drafter", ["model", "suffix", "hybrid"])
@pytest.mark.parametrize("rtt_s", [0.02, 0.3])
def test_in_streams_overlap_is_drafting_during_waits(drafter: str, rtt_s: float) -> None:
    sessions = SessionTable()
    recent = Recent(sessions)
    ue = streams.Ue(drafter, rtt_s=rtt_s, tokens=300)
    ((record,),), _ = streams.serve([ue], 0.05, sessions, observer=recent)
    tally = recent.tally()
    assert tally.used == sum(r.drafted for r in record.rounds) > 0
    assert tally.ahead >= tally.used
    assert tally.overlap_s == pytest.approx(sum(r.hidden_s for r in record.rounds), rel=0.1)
