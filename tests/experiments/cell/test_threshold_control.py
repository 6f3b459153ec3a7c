"""θ of judges decided while a cell serves."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.control.hints import DecidedHints
from testbed.bs.control.messages import RoundSeen
from testbed.channel.radio.config import RadioConfig
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.control.judgements import LEVELS, Judgements
from testbed.experiments.cell.sections import CellControl, CellModels
from tests.experiments.cell.test_run import rows

MOST = 0.8
JUDGED = UeGroup(name="judged", count=3, protocol="fh", judge_keeps=MOST, alpha=0.7, response=(60, 100))


def served(group: UeGroup, control: CellControl) -> dict[str, Any]:
    config = CellConfig(seconds=14.0, radio=RadioConfig(bandwidth_hz=20e6), ues=(group,), control=control)
    return rows(config)[group.name]


def worth(row: dict[str, Any], threshold: float, price: float) -> float:
    """Tokens per second, less what the risk of kept mismatches costs."""
    risk = row["kept_share"] * -math.log1p(-threshold)
    return float(row["goodput_tps"] * (1 - price * risk))


@pytest.mark.parametrize("price", [0.0, 1.0, 2.0, 4.0, 20.0])
def test_decisions_reach_the_best_fixed_threshold(price: float) -> None:
    """Against every θ between which is decided, each in a run of its own."""
    fixed = {
        share * MOST: served(msgspec.structs.replace(JUDGED, judge_keeps=share * MOST), CellControl())
        for share in LEVELS
    }
    found = served(JUDGED, CellControl(threshold="joint", risk_tokens=price))
    worths = {threshold: worth(row, threshold, price) for threshold, row in fixed.items()}
    best = max(worths, key=lambda threshold: worths[threshold])
    assert found["kept_share"] == pytest.approx(fixed[best]["kept_share"], abs=0.05)
    assert found["goodput_tps"] == pytest.approx(fixed[best]["goodput_tps"], rel=0.1)
    assert found["switches_per_s"] < 0.3


def test_protocol_and_threshold_are_decided_together() -> None:
    group = msgspec.structs.replace(JUDGED, protocol="sh", protocol_hints=True)
    control = {"threshold": "joint", "protocol": "joint"}
    free = served(group, CellControl(**control))  # type: ignore[arg-type]
    dear = served(group, CellControl(**control, risk_tokens=50.0))  # type: ignore[arg-type]
    assert free["kept_share"] > 0.15 > 0.05 > dear["kept_share"]
    assert all(0 <= row["fh_share"] <= 1 for row in (free, dear))
    assert free["goodput_tps"] > 1.5 * dear["goodput_tps"]


def test_a_real_head_keeps_less_where_risk_is_dear() -> None:
    group = UeGroup(name="judged", count=2, protocol="fh", threshold=0.5)
    config = CellConfig(
        seconds=10.0, radio=RadioConfig(bandwidth_hz=20e6), ues=(group,),
        models=CellModels(prompts=3, max_tokens=80), control=CellControl(threshold="joint", risk_tokens=1000.0),
    )  # fmt: skip
    free = rows(msgspec.structs.replace(config, control=CellControl(threshold="joint")))["judged"]
    dear = rows(config)["judged"]
    assert free["kept_share"] > 0 and dear["kept_share"] < free["kept_share"] / 2


def test_a_threshold_that_rises_while_a_round_waits_holds_from_the_next_one_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The round was judged by hidden states that nobody had asked the engine for."""
    calls = itertools.count()
    monkeypatch.setattr(DecidedHints, "threshold", lambda self, session: (0.0, 0.5)[next(calls) % 2])
    group = UeGroup(name="judged", count=2, protocol="fh", threshold=0.5)
    config = CellConfig(
        seconds=6.0, radio=RadioConfig(bandwidth_hz=20e6), ues=(group,),
        models=CellModels(prompts=2, max_tokens=60), control=CellControl(threshold="joint"),
    )  # fmt: skip
    row = rows(config)["judged"]
    assert row["responses"] > 0 and row["kept_share"] > 0


# ---------------------------------------------------------------- estimates


def seen(drafted: int, accepted: int, kept: int, threshold: float) -> RoundSeen:
    return RoundSeen(b"ue", 1, drafted, accepted, 100, 0.1, candidates=0, kept=kept, threshold=threshold)


@pytest.mark.parametrize("alpha", [0.5, 0.9])
def test_estimates_are_what_coins_say(alpha: float) -> None:
    """Mismatches are kept with probability θ²."""
    random, found = np.random.default_rng(5), Judgements()
    for number in range(1500):
        threshold = (0.4, 0.8)[number % 2]
        agrees, keeps = random.random(8) < alpha, random.random(8) < threshold**2
        stays = np.append(agrees | keeps, False)
        accepted = int(stays.argmin())
        found.learn(seen(8, accepted, int((~agrees[:accepted]).sum()), threshold))
    assert found.strict == pytest.approx(alpha, abs=0.04)
    for threshold in (0.4, 0.8):
        assert found.keeps(threshold) == pytest.approx(threshold**2, abs=0.15)
        risk = (1 - alpha) * threshold**2 * -math.log1p(-threshold)
        assert found.risk(threshold) == pytest.approx(risk, rel=0.35)


@given(
    st.lists(
        st.tuples(st.integers(1, 16), st.integers(0, 16), st.integers(0, 16), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_estimates_are_probabilities(rounds: Any, observed: list[float], threshold: float) -> None:
    found = Judgements()
    for drafted, accepted, kept, used in rounds:
        accepted = min(accepted, drafted)
        found.learn(seen(drafted, accepted, min(kept, accepted) if used else 0, used))
    assert 0 <= found.strict <= 1 and found.keeps(0.0) == 0 and found.risk(0.0) == 0
    assert 0 <= found.keeps(threshold) <= 1
    assert all(0 <= rate <= 1 for rate in found.acceptance(tuple(observed), threshold))
    assert 0 <= found.risk(threshold) < math.inf


def test_nothing_is_decided_without_a_judge_that_keeps_tokens() -> None:
    with pytest.raises(BadInput, match="give a group judge_keeps"):
        CellConfig(ues=(UeGroup(name="a", protocol="greedy"),), control=CellControl(threshold="joint"))
