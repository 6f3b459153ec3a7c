"""FH or SH decided round by round while a cell serves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from testbed.bs.control.hints import DecidedHints
from testbed.bs.control.messages import Decided, Decisions
from testbed.bs.engines.base import VerifyResult
from testbed.bs.pending import Round
from testbed.bs.scheduling.hints import Hint
from testbed.bs.sessions import Session
from testbed.channel.radio.config import ConstantSource, RadioConfig
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, CellControl, UeGroup
from testbed.experiments.cell.control.estimates import CellEstimates
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.protocols import protocol
from testbed.protocols.base import Window

JOINT = CellControl(protocol="joint")


def group(kind: str = "joint", **fields: Any) -> UeGroup:
    """UEs with a protocol, or that follow hints between FH and SH."""
    given = {"name": kind, "count": 3, "response": (40, 80), "protocol_hints": kind == "joint", **fields}
    return UeGroup(protocol="sh" if kind == "joint" else kind, **given)


def rows(*ues: UeGroup, bandwidth_hz: float, rtt_ms: float, control: CellControl) -> dict[str, dict[str, Any]]:
    scheduler = "joint" if control.weights == "joint" else "round-robin"
    radio = RadioConfig(
        bandwidth_hz=bandwidth_hz, wired_ms=rtt_ms / 2, scheduler=scheduler,
        source=ConstantSource(bits_per_s_per_hz=2.0),
    )  # fmt: skip
    config = CellConfig(seconds=7.0, radio=radio, ues=ues, control=control)
    return {row["group"]: row for row in document(config, run_cell(config))["rows"]}


def compared(bandwidth_hz: float, rtt_ms: float, weights: str = "fixed") -> dict[str, dict[str, Any]]:
    """Rows of the same cell with FH, with SH, and with what is decided."""
    fields = {"bandwidth_hz": bandwidth_hz, "rtt_ms": rtt_ms}
    found = {}
    for kind in ("fh", "sh", "joint"):
        control = CellControl(protocol="joint" if kind == "joint" else "fixed", weights=weights)  # type: ignore[arg-type]
        found |= rows(group(kind), **fields, control=control)
    return found


@pytest.mark.parametrize("weights", ["fixed", "joint"])
def test_fh_is_chosen_where_a_second_round_trip_is_long_and_the_radio_free(weights: str) -> None:
    found = compared(bandwidth_hz=1e8, rtt_ms=100.0, weights=weights)
    tps = {kind: row["goodput_tps"] for kind, row in found.items()}
    assert tps["fh"] > 1.2 * tps["sh"] and tps["joint"] > 0.95 * tps["fh"]
    assert found["joint"]["fh_share"] > 0.9 and found["fh"]["fh_share"] is None
    assert found["joint"]["switches_per_s"] <= 0.1


@pytest.mark.parametrize("weights", ["fixed", "joint"])
def test_sh_is_chosen_where_the_uplink_is_narrow(weights: str) -> None:
    found = compared(bandwidth_hz=5e5, rtt_ms=0.0, weights=weights)
    tps = {kind: row["goodput_tps"] for kind, row in found.items()}
    assert tps["sh"] > 1.2 * tps["fh"] and tps["joint"] > 0.97 * tps["sh"]
    assert found["joint"]["fh_share"] < 0.05
    assert found["joint"]["switches_per_s"] <= 0.1


@pytest.mark.parametrize("bandwidth_hz", [8e6, 16e6])
def test_it_does_not_oscillate_where_both_are_as_good(bandwidth_hz: float) -> None:
    found = compared(bandwidth_hz, rtt_ms=10.0, weights="joint")
    best, worst = (pick(found[kind]["goodput_tps"] for kind in ("fh", "sh")) for pick in (max, min))
    assert best < 1.1 * worst
    assert found["joint"]["goodput_tps"] > 0.95 * best
    assert found["joint"]["switches_per_s"] < 0.2


def test_ues_that_ignore_hints_keep_their_protocol_beside_others() -> None:
    found = rows(group(), group("sh"), bandwidth_hz=1e8, rtt_ms=100.0, control=JOINT)
    alone = rows(group("sh", count=6), bandwidth_hz=1e8, rtt_ms=100.0, control=CellControl())
    assert found["joint"]["fh_share"] > 0.9 and found["sh"]["fh_share"] is None
    assert found["sh"]["goodput_tps"] > 0.95 * alone["sh"]["goodput_tps"] / 2


@pytest.mark.parametrize("kind", ["fh", "sh"])
def test_what_sh_would_ask_for_is_learnt_from_rounds_of_both(kind: str) -> None:
    estimates = CellEstimates()
    hints, session = (
        DecidedHints(estimates.tell),
        Session((b"ue", 1), "s", np.zeros(9, np.int32), 5, protocol("sh"), 0.0, 4),
    )
    session.protocol_hints = True
    hidden = np.zeros((4, 4), np.float16) if kind == "fh" else None
    for number in range(200):
        round_ = Round(number, Window(np.ones(4, np.int32), hidden), None, 0.0)
        round_.asked_s = 0.0 if kind == "sh" else None
        argmax = np.array([1, 1 + number % 2, 1, 2, 1], np.int32)  # 1 or 2 candidates of 4
        round_.result = VerifyResult(argmax, np.zeros(5, np.float32), np.zeros(4, np.float32))
        assert hints.hint(session, round_, 1, 0.0) == Hint()
    (ue,) = estimates.ues.values()
    assert ue.asked.value == pytest.approx(1.5 / 4, rel=0.05)
    hints.apply(Decisions({b"ue": Decided(protocol="fh")}))
    assert hints.hint(session, round_, 1, 0.0).protocol == "fh"
    session.protocol_hints = False
    assert hints.hint(session, round_, 1, 0.0).protocol == ""


def test_hints_that_nothing_follows_or_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadInput, match="protocol_hints: true"):
        CellConfig(ues=(group("sh"),), control=JOINT)
    for kind in ("greedy", "fh", "target-only"):
        with pytest.raises(BadInput, match=f"beside {kind}; take sh"):
            group(kind, protocol_hints=True)
