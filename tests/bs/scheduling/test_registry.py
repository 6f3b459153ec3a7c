"""The registry of schedulers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.bs.scheduling.base import Fcfs
from testbed.bs.scheduling.registry import SchedulerSetting, scheduler
from testbed.bs.scheduling.slo import Slo
from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients

TIMES = Coefficients(1e-4, 0, 0, 1e-2)


def test_the_registry() -> None:
    assert scheduler("fcfs", SchedulerSetting(3, 70)) == Fcfs(3, 70)
    assert scheduler("fcfs", SchedulerSetting(3, 700, chunk_tokens=128)) == Fcfs(3, 700, 128)
    expected = Slo(coefficients=TIMES, max_requests=3, max_tokens=70, kv_tokens=999)
    assert scheduler("slo", SchedulerSetting(3, 70, TIMES, kv_tokens=999)) == expected
    assert scheduler("slo", SchedulerSetting(3, 70, TIMES, kv_tokens=999, protect=False)) == replace(
        expected, protect=False
    )
    with pytest.raises(BadInput, match="unknown scheduler 'lifo'; known: fcfs, slo"):
        scheduler("lifo", SchedulerSetting(3, 70))
    with pytest.raises(BadInput, match="slo needs the coefficients"):
        scheduler("slo", SchedulerSetting(3, 70))


@pytest.mark.parametrize("kind", ["fcfs", "slo"])
@pytest.mark.parametrize(("requests", "tokens"), [(0, 70), (-1, 70), (3, 0)])
def test_bounds_under_which_nothing_would_ever_go_are_refused(kind: str, requests: int, tokens: int) -> None:
    with pytest.raises(BadInput, match="1 request and 1 token or more"):
        scheduler(kind, SchedulerSetting(requests, tokens, TIMES))
