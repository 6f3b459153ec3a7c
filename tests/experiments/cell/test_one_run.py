"""A judge that keeps mismatches, promised speeds and radio shares in one run: each does there what it does alone."""

from __future__ import annotations

from typing import Any

import msgspec

from testbed.channel.radio.config import RadioConfig
from testbed.experiments.cell.config import CellBs, CellConfig, UeGroup
from tests.experiments.cell.test_run import rows

NEAR = UeGroup(
    name="near", count=3, protocol="fh", alpha=0.7, class_tps=12.0, response=(20, 40), judge_keeps=0.8, weight=3.0
)
FAR = msgspec.structs.replace(NEAR, name="far", weight=1.0)
CROWD = UeGroup(name="crowd", count=80, protocol="target-only", response=(40, 60))
CELL = CellConfig(
    seconds=8.0, radio=RadioConfig(bandwidth_hz=4e6, scheduler="weights"), ues=(NEAR, FAR, CROWD),
    bs=CellBs(scheduler="slo"),
)  # fmt: skip


def changed(**changes: Any) -> CellConfig:
    """The cell with other fields of the groups near and far."""
    ues = (*(msgspec.structs.replace(group, **changes) for group in (NEAR, FAR)), CROWD)
    return msgspec.structs.replace(CELL, ues=ues)


def test_a_judge_promised_speeds_and_shares_of_the_radio_meet_in_one_run() -> None:
    together, strict, equal = rows(CELL), rows(changed(judge_keeps=0.0)), rows(changed(weight=1.0))
    first_come = rows(msgspec.structs.replace(CELL, bs=CellBs(scheduler="fcfs")))
    for name in ("near", "far"):
        assert together[name]["acceptance_cond"] > strict[name]["acceptance_cond"] + 0.1  # the judge
        assert together[name]["judged"] > 0 and together[name]["violations"] == 0  # the promise
        assert together[name]["goodput_tps"] > 1.15 * first_come[name]["goodput_tps"]
    near, far = (together[name]["message_delay_s"]["mean"] for name in ("near", "far"))
    same, alike = (equal[name]["message_delay_s"]["mean"] for name in ("near", "far"))
    assert far > 1.4 * near and 0.7 < same / alike < 1.4  # the shares
