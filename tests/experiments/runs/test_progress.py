"""Progress of runs that are piped into a file."""

from __future__ import annotations

import pytest

from testbed.experiments.runs import progress
from testbed.experiments.runs.progress import LiveProgress
from testbed.ue.records import RoundRecord
from testbed.ue.run import Job


def test_a_piped_run_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    record = RoundRecord(0, "greedy", 5, 4, 3, 4, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9, 9, 0.0)
    with LiveProgress(3) as live:
        live.round(Job("greedy", 0), record)
    assert capsys.readouterr().err.startswith("0 of 3 requests, ")
