"""Lookahead decided while a cell serves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from testbed.channel.radio.config import ConstantSource, RadioConfig
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.sections import CellControl
from tests.experiments.cell.test_run import rows

JOINT = CellControl(lookahead="joint")
NEAR = UeGroup(name="ue", count=3, alpha=0.9, window=4, response=(60, 100))


def served(group: UeGroup, radio: RadioConfig, control: CellControl = JOINT) -> dict[str, Any]:
    return rows(CellConfig(seconds=10.0, radio=radio, ues=(group,), control=control))["ue"]


def compared(group: UeGroup, radio: RadioConfig) -> dict[str, dict[str, Any]]:
    """Rows of the same UEs without lookahead, with it, and as decided."""
    fixed = {
        str(ahead): served(msgspec.structs.replace(group, lookahead=ahead), radio, CellControl()) for ahead in (0, 1)
    }
    return fixed | {"joint": served(msgspec.structs.replace(group, lookahead_hints=True), radio)}


def test_windows_are_sent_ahead_over_long_round_trips() -> None:
    found = compared(NEAR, RadioConfig(bandwidth_hz=50e6, wired_ms=40.0))
    tps = {name: row["goodput_tps"] for name, row in found.items()}
    assert tps["1"] > 1.1 * tps["0"] and tps["joint"] > 0.97 * tps["1"]
    assert found["joint"]["lookahead"] > 0.9 and found["joint"]["switches_per_s"] < 0.1


def test_windows_wait_for_verdicts_where_void_ones_fill_the_uplink() -> None:
    group = msgspec.structs.replace(NEAR, protocol="fh", alpha=0.5, lookahead=1)
    radio = RadioConfig(bandwidth_hz=1e6, source=ConstantSource(bits_per_s_per_hz=2.0))
    found = compared(group, radio)
    tps = {name: row["goodput_tps"] for name, row in found.items()}
    assert tps["0"] > 1.05 * tps["1"] and tps["joint"] > 0.95 * tps["0"]
    assert found["joint"]["lookahead"] < 0.1 and found["joint"]["switches_per_s"] < 0.1


def test_who_takes_no_hints_looks_ahead_as_configured() -> None:
    radio = RadioConfig(bandwidth_hz=50e6, wired_ms=40.0)
    groups = (msgspec.structs.replace(NEAR, name="other"), msgspec.structs.replace(NEAR, lookahead_hints=True))
    found = rows(CellConfig(seconds=6.0, radio=radio, ues=groups, control=JOINT))
    assert found["other"]["lookahead"] == 0 and found["ue"]["lookahead"] > 0.9


@pytest.mark.parametrize(
    ("fields", "control", "said"),
    [
        ({"lookahead_hints": True, "lookahead": None}, {}, "lookahead_hints need lookahead 0 or 1"),
        ({"lookahead_hints": True, "lookahead": "stream"}, {}, "lookahead_hints need lookahead 0 or 1"),
        ({"lookahead_hints": True, "protocol": "rejection"}, {}, "windows that may look ahead"),
        ({"lookahead_hints": True, "protocol": "target-only"}, {}, "windows that may look ahead"),
        ({}, {"lookahead": "joint"}, "no UE follows the lookahead"),
    ],
)
def test_hints_that_nothing_follows_are_refused(fields: dict[str, Any], control: dict[str, Any], said: str) -> None:
    with pytest.raises((BadInput, msgspec.ValidationError), match=said):
        msgspec.convert({"ues": [{"name": "a", **fields}], "control": control}, CellConfig)
