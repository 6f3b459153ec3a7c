"""UEs of a cell that draft before the verdict: what it costs them, and the choice of it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from testbed.channel.radio.config import RadioConfig
from testbed.experiments.cell.config import CellBs, CellConfig, UeGroup, UePower
from testbed.experiments.cell.run import run_cell
from testbed.ue.windows.stream_choice import StreamChoice
from tests.experiments.cell.test_run import rows

UE = UeGroup(name="ue", protocol="greedy", alpha=0.8)


def test_drafting_ahead_costs_energy_that_waiting_does_not() -> None:
    """Void tokens and tokens drafted before a verdict take their drafting time, although no round waits for it."""
    power, joules = UePower(draft_w=10.0), dict[Any, float]()
    for ahead in (0, 1, "stream"):
        group = msgspec.structs.replace(UE, window=4, lookahead=ahead, power=power)
        config = CellConfig(seconds=22.0, radio=RadioConfig(wired_ms=50.0), ues=(group,))
        (_, (tally,)), *_ = run_cell(config).groups
        drafted = tally.drafted_ahead if ahead == "stream" else tally.drafted + tally.void
        assert tally.computed_s == pytest.approx(drafted * 0.01658, rel=0.06)
        joules[ahead] = rows(config)["ue"]["joules_per_token"]
    assert joules["stream"] > joules[1] > 1.2 * joules[0]


def test_a_chosen_lookahead_is_no_slower_than_the_target_alone() -> None:
    """The target decodes on by itself where the drafts come too late."""
    config = CellConfig(seconds=32.0, radio=RadioConfig(wired_ms=100.0), ues=(UE,), bs=CellBs(profile="wisv"))
    speeds = {}
    for change in ({"protocol": "target-only"}, {"protocol": "greedy", "lookahead": None}, {"protocol": "greedy"}):
        group = msgspec.structs.replace(UE, **change)
        found = rows(msgspec.structs.replace(config, ues=(group,)))["ue"]
        speeds[change.get("lookahead", change["protocol"])] = found["goodput_tps"]
    assert speeds[None] > 0.98 * speeds["target-only"] > 1.5 * speeds["greedy"]


def test_the_time_on_the_link_is_measured_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was 0 where a window was sent again, or came during the pass before the one that verified it."""
    measured, linked = list[float](), StreamChoice.linked

    def seen(choice: StreamChoice, seconds: float) -> None:
        measured.append(seconds)
        linked(choice, seconds)

    monkeypatch.setattr(StreamChoice, "linked", seen)
    radio = RadioConfig(wired_ms=24.0)
    ues = (
        UeGroup(name="drafting", count=6, lookahead=None, alpha=0.8),
        UeGroup(name="others", count=6, protocol="target-only"),
    )
    run_cell(CellConfig(seconds=6.0, warmup_s=1.0, radio=radio, ues=ues))
    assert len(measured) > 80 and min(measured) >= 0.048
    assert np.median(measured) < 0.1
