"""Reports of a link: late, periodic, on levels, with noise of the stated size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.csi import Csi
from testbed.channel.measuring.reports import Reports
from testbed.errors import BadInput

TRUTH = Csi(37.0, 80.0, 25.0, 0.1, 0.2)


@given(st.floats(0, 1000), st.floats(1, 500), st.floats(0, 500))
def test_a_report_in_use_is_never_newer_than_its_delay_nor_older_than_a_period_more(
    time_s: float, period: float, delay: float
) -> None:
    reports = Reports(period_ms=period, delay_ms=delay)
    age_s = time_s - reports.measured_s(reports.index(time_s))
    if 1e3 * time_s >= delay:
        assert delay / 1e3 - 1e-6 <= age_s <= (delay + period) / 1e3 + 1e-6
    else:
        assert reports.index(time_s) == 0


def test_a_report_is_the_goodput_on_the_nearest_level() -> None:
    fine = Reports(levels=3001, noise_db=0.0).report(TRUTH, 0)
    assert fine.uplink_mbps == pytest.approx(37.0 * 0.9, rel=0.002)
    assert fine.downlink_mbps == pytest.approx(80.0 * 0.8, rel=0.002)
    assert (fine.per_up, fine.per_down, fine.source) == (0.0, 0.0, "report")
    coarse = Reports(levels=4, noise_db=0.0)  # 1, 10, 100, 1000
    found = [coarse.report(Csi(rate, 1.0, 1.0), 0).uplink_mbps for rate in (0.1, 3.0, 3.3, 31.0, 32.0, 5000.0)]
    assert found == pytest.approx([1, 1, 10, 10, 100, 1000])


def test_the_noise_has_the_stated_size_and_repeats_itself() -> None:
    reports = Reports(levels=100_000, noise_db=2.0, seed=5)
    found = np.array([reports.report(TRUTH, i).uplink_mbps for i in range(4000)])
    errors_db = 10 * np.log10(found / (37.0 * 0.9))
    assert abs(errors_db.mean()) < 5 * 2 / math.sqrt(4000) and errors_db.std() == pytest.approx(2.0, rel=0.05)
    other = Reports(levels=100_000, noise_db=2.0)
    assert reports.report(TRUTH, 7) == reports.report(TRUTH, 7) != other.report(TRUTH, 7)


@pytest.mark.parametrize(
    "given",
    [{"period_ms": 0}, {"delay_ms": -1}, {"levels": 1}, {"noise_db": -1}, {"seed": -1}, {"period_ms": 1e-320},
     {"period_ms": 1e300}, {"delay_ms": 1e300}, {"levels": 2**70}, {"noise_db": 1e6}],
)  # fmt: skip
def test_reports_that_cannot_be(given: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        Reports(**given)  # type: ignore[arg-type]
