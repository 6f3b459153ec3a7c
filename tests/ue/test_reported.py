"""Times that a base station reports, cut to those that the UE measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.protocols.messages import Verdict
from testbed.ue.waiting.reported import TOLERANCE, TOLERANCE_S, ReportedTimes

TIMES = st.floats(-86_400, 86_400)


def verdict(queue_s: float, verify_s: float, judge_s: float, bs_s: float = 0.0) -> Verdict:
    return Verdict(
        session=1, round=0, accepted=0, token=1, candidates=0, queried=0, batch_size=1, queue_s=queue_s,
        verify_s=verify_s, judge_s=judge_s, bs_s=bs_s, gap=0.0,
    )  # fmt: skip


@given(*[TIMES] * 4, st.floats(0, 1000))
def test_they_are_never_negative_nor_longer_than_the_exchange(
    queue_s: float, verify_s: float, judge_s: float, bs_s: float, seconds: float
) -> None:
    """One negative time ended a run whose power was measured, and each resumption; long ones were plotted as given."""
    found = ReportedTimes(0.0).of_window(verdict(queue_s, verify_s, judge_s, bs_s), seconds)
    parts_s = (found.queue_s, found.verify_s, found.judge_s)
    assert min(parts_s) >= 0 and sum(parts_s) <= seconds * (1 + 1e-5) + TOLERANCE_S + 1e-9
    assert 0 <= found.bs_s <= seconds * (1 + TOLERANCE) + TOLERANCE_S


@given(*[st.floats(0, 10)] * 3, st.floats(0, 10))
def test_true_ones_are_as_reported(queue_s: float, verify_s: float, judge_s: float, link_s: float) -> None:
    told = verdict(queue_s, verify_s, judge_s, queue_s + verify_s + judge_s)
    assert ReportedTimes(0.0).of_window(told, queue_s + verify_s + judge_s + link_s) == told


def test_of_a_bs_that_decodes_alone_all_together_are_no_longer_than_the_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its tokens may come together: each one's time may be longer than that since the one before."""
    times, sum_s = ReportedTimes(100.0), 0.0
    for now_s in (101.0, 101.0, 101.0):
        found = times.alone(verdict(0.0, 0.3, 0.0), now_s)
        assert found.verify_s == 0.3
        sum_s += found.verify_s
    assert not caplog.records
    for now_s in (101.1, 101.2, 101.3):
        sum_s += times.alone(verdict(0.0, 9.0, 0.0), now_s).verify_s
    assert sum_s == pytest.approx(1.3) and len(caplog.records) == 1
    assert times.alone(verdict(0.0, 0.0, 0.0, bs_s=86_400.0), 101.4).bs_s == pytest.approx(0.1)
