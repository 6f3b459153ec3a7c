"""Runs that end once the verdict is clear: against whole runs, and how long they are."""

from __future__ import annotations

import msgspec
import pytest

from testbed.channel.radio.config import RadioConfig
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.grid.judged import judged_counts, judged_run, needed_s
from testbed.experiments.cell.grid.quota import Quota, verdict_of
from testbed.experiments.cell.run import run_cell
from testbed.intervals import LEAST_JUDGED
from testbed.virtual_time import VirtualClock, run_virtually

FAST = UeGroup(name="fast", protocol="fh", class_tps=10.0, count=2, response=(4, 8))
SLOW = UeGroup(name="slow", protocol="fh", class_tps=5.0, count=2, response=(4, 8))
CELL = CellConfig(seconds=6.0, radio=RadioConfig(bandwidth_hz=4e6), ues=(FAST, SLOW))


def test_a_run_that_ends_early_is_the_beginning_of_the_whole_one() -> None:
    early = run_cell(CELL, clear=lambda seconds: seconds >= 2.0)
    short = run_cell(msgspec.structs.replace(CELL, seconds=4.0))
    assert early.seconds == pytest.approx(2.0) and short.seconds == 2.0
    assert (early.uplink, early.busy, early.passes) == pytest.approx((short.uplink, short.busy, short.passes))
    tokens = [[tally.tokens for _, tallies in run.groups for tally in tallies] for run in (early, short)]
    assert tokens[0] == tokens[1] and sum(tokens[0]) > 0


@pytest.mark.parametrize(
    "bandwidth_hz", [2e6, 2.3e6, *(pytest.param(one_hz, marks=pytest.mark.long) for one_hz in (2.6e6, 4e6))]
)
def test_the_verdict_is_that_of_all_responses_of_the_quotas(bandwidth_hz: float) -> None:
    cell = msgspec.structs.replace(CELL, radio=RadioConfig(bandwidth_hz=bandwidth_hz))
    found = judged_run(cell, 0.05)
    quotas = {name: Quota(most) for name, most in judged_counts(cell).items()}
    whole = msgspec.structs.replace(cell, seconds=cell.warmup_s + 2 * needed_s(cell))
    run_cell(whole, {name: quota.begin for name, quota in quotas.items()})
    assert all(quota.late + quota.in_time == quota.most for quota in quotas.values())
    late = {name: quota.violated / quota.judged for name, quota in quotas.items()}
    assert found.verdict == ("kept" if max(late.values()) <= 0.05 else "violated")
    assert found.seconds < needed_s(cell)


def test_both_verdicts_are_met_by_these_cells() -> None:
    cells = [msgspec.structs.replace(CELL, radio=RadioConfig(bandwidth_hz=hertz)) for hertz in (2e6, 10e6)]
    few, many = (judged_run(cell, 0.05) for cell in cells)
    assert (few.verdict, many.verdict) == ("violated", "kept")
    longer = msgspec.structs.replace(cells[0], seconds=20.0)
    assert judged_run(longer, 0.05).seconds < 10.0
    assert judged_run(longer, 0.05, whole=True).seconds >= 18.0


def test_a_class_is_judged_by_sixty_responses_or_those_of_the_cells_time() -> None:
    def counts(*groups: UeGroup, seconds: float = 42.0) -> dict[str, int]:
        return judged_counts(msgspec.structs.replace(CELL, ues=groups, seconds=seconds))

    assert counts(FAST, SLOW, seconds=6.0) == {"fast": LEAST_JUDGED, "slow": LEAST_JUDGED}
    assert counts(FAST, SLOW) == {"fast": 134, "slow": 67}  # 40 s, one in 6 / 10 and 6 / 5 s of each of two
    assert counts(msgspec.structs.replace(FAST, think_s=0.4)) == {"fast": 80}
    assert counts(msgspec.structs.replace(FAST, rate_rps=0.8)) == {"fast": 64}
    assert needed_s(CELL) == pytest.approx(1.5 * LEAST_JUDGED * (6 / 5) / 2 + 8 / 5)


def test_quotas_decide_once_no_response_can_change_the_verdict() -> None:
    async def main() -> None:
        clock, quota = VirtualClock(), Quota(40)
        early, starved = quota.begin(1.0, False), quota.begin(8.0, False)
        ended = [quota.begin(10.0 if n < 2 else 20.0, True) for n in range(50)]
        for end in ended[3:40]:
            end()
        assert (quota.begun, quota.in_time, quota.verdict(0.05)) == (40, 37, None)
        ended[2]()
        assert quota.verdict(0.05) == "undecided"  # 40 are fewer than a class needs
        await clock.sleep(3.0)
        assert quota.verdict(0.05) is None and (quota.overdue, quota.starved) == (0, 1)
        await clock.sleep(9.0)
        assert (quota.late, quota.verdict(0.02), quota.verdict_so_far(0.05)) == (2, "violated", "undecided")
        assert (quota.overdue, quota.judged) == (1, 42)
        starved()
        early()
        assert (quota.overdue, quota.starved, quota.judged) == (0, 1, 41)
        ended[0]()
        assert (quota.late, quota.in_time) == (2, 38)

    run_virtually(main())


def test_a_cell_that_serves_nobody_is_violated_at_once() -> None:
    crowd = msgspec.structs.replace(FAST, count=40)
    cell = msgspec.structs.replace(CELL, radio=RadioConfig(bandwidth_hz=1e5), ues=(crowd,))
    found = judged_run(cell, 0.05)
    assert found.verdict == "violated" and found.seconds < 3.0


def test_one_class_that_is_violated_is_enough() -> None:
    async def main() -> None:
        clock, bad, open_ = VirtualClock(), Quota(60), Quota(60)
        for _ in range(4):
            bad.begin(1.0, True)
        assert verdict_of({"bad": bad, "open": open_}, 0.05) is None
        await clock.sleep(2.0)
        assert verdict_of({"bad": bad, "open": open_}, 0.05) == "violated"

    run_virtually(main())
