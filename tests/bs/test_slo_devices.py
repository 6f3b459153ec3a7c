"""How schedulers keep the promises of many devices: one verifier, simulated without the testbed's own runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from testbed.bs.scheduling.base import Fcfs
from testbed.bs.scheduling.slo import Slo
from tests.support.devices import A100, CAP, Simulation
from tests.support.printed import Printed

HORIZON_S = 300.0
WARM_S = 5.0


def mixed(count: int) -> list[float]:
    return [(2.0, 4.0, 6.0, 8.0)[i % 4] for i in range(count)]


def violations(speeds: Sequence[float], scheduler: Any, horizon_s: float = HORIZON_S, **more: Any) -> list[float]:
    run = Simulation(speeds, scheduler, **more)
    run.run(horizon_s)
    return list(run.violations(WARM_S).values())


@pytest.mark.parametrize(
    ("scheduler", "printed", "within"),
    [
        (Printed(A100, CAP, 0.66, 0.1, late_last=True), [0, 0, 0.21, 0.97], 0.08),
        (Fcfs(CAP, 10**6), [0, 0, 0.00, 0.84], 0.03),
        (Slo(coefficients=A100, max_requests=CAP, acceptance=0.66, committed="linear"), [0, 0, 0, 0], 0.0),
        (Printed(A100, CAP, 0.66, 0.1), [1, 1, 1, 1], 0.0),  # stands still
    ],
    ids=["late last", "fcfs", "slo", "as printed"],
)
def test_110_mixed_devices_fare_as_the_errata_say(scheduler: Any, printed: list[float], within: float) -> None:
    assert violations(mixed(110), scheduler) == pytest.approx(printed, abs=within)


SLO = Slo(coefficients=A100, max_requests=CAP, acceptance=0.855)
SATURATED = replace(SLO, acceptance=0.758)
"""α of drafted tokens, where windows are full."""


def test_the_knee_moves_right_where_what_was_gained_may_be_spent() -> None:
    assert max(violations(mixed(140), SLO, 150.0, banked=True)) <= 0.02
    _, _, at_six, at_eight = violations(mixed(140), Fcfs(CAP, 10**6), 150.0)
    assert at_six > 0.4 and at_eight > 0.9


@pytest.mark.parametrize(("speed_tps", "count"), [(8.0, 86), (6.0, 110), (4.0, 142), (2.0, 164)])
def test_one_class_alone_loses_nothing_to_first_come_first_served(speed_tps: float, count: int) -> None:
    (ours,) = violations([speed_tps] * count, SLO, 100.0, banked=True)
    (theirs,) = violations([speed_tps] * count, Fcfs(CAP, 10**6), 100.0)
    assert ours <= min(theirs, 0.02)


def test_small_passes_are_what_deadlines_cost_where_the_verifier_is_saturated() -> None:
    """120 devices of 8 tokens/s with full windows: each round's budget by itself, passes protected and filled."""
    small, filled, first = (
        Simulation([8.0] * 120, plan, predictor=False)
        for plan in (SATURATED, replace(SATURATED, protect=False), Fcfs(CAP, 10**6))
    )
    for run in (small, filled, first):
        run.run(100.0)
    size = {name: run.rounds / run.passes for name, run in (("small", small), ("filled", filled), ("first", first))}
    assert size["small"] < 0.97 * size["first"] and size["filled"] > 0.99 * size["first"]
    late = [run.violations(WARM_S)[8.0] for run in (small, filled, first)]
    assert late[0] > 1.5 * late[2] and late[1] <= late[2] + 0.02
