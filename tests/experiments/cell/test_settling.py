"""Decisions after a step in load or in a channel, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from testbed.bs.control.hints import DecidedHints
from testbed.bs.control.messages import Decided, Decisions
from testbed.channel.radio.config import RadioConfig, TraceSource
from testbed.channel.radio.mac import RadioCell
from testbed.clock import WallClock
from testbed.experiments.cell.config import CellConfig, CellControl, UeGroup, radio_ues
from testbed.experiments.cell.control.controller import JointController
from testbed.experiments.cell.control.estimates import CellEstimates
from testbed.experiments.cell.planning import ue_name
from testbed.experiments.cell.real.relayed import RelayedCell
from testbed.experiments.cell.run import run_cell
from testbed.experiments.cell.tally import UeTally

HEADER = "t_s,uplink_mbps,downlink_mbps,rtt_ms,per_up,per_down,snr_db"
STEP_S, END_S = 6.0, 20.0
CHANGES, SHORTER, WEIGHTS = 2, 70, 20
"""Changes of a UE's window after a step, decisions until windows are shorter in a worse channel, and decisions until
weights stay near their later mean. Later on, windows grow as the acceptance rates of far positions are learnt.
"""
NEAR = 0.25
LATER = 50
"""Decisions at the end of a run over which that mean is taken."""
FIRST = UeGroup(
    name="first", count=3, protocol="fh", profile="edge-sd", window=12, window_rule="hinted", alpha=0.9,
    response=(4000, 4000),
)  # fmt: skip
CELL = CellConfig(
    seconds=END_S, radio=RadioConfig(bandwidth_hz=2e7, scheduler="joint"), ues=(FIRST,),
    control=CellControl(windows="joint", weights="joint", objective="fair"),
)  # fmt: skip


def more_load(directory: Path) -> CellConfig:
    """Three UEs begin within a second from the step on."""
    return replace(CELL, ues=(FIRST, replace(FIRST, name="late", begin_s=STEP_S)))


def worse_channel(directory: Path) -> CellConfig:
    """Two UEs have a quarter of their rates from the step on."""
    for name, later_mbps in (("steady", 40), ("step", 10)):
        rates = ((0.0, 40), (STEP_S, later_mbps), (2 * END_S, later_mbps))
        lines = [f"{t_s},{mbps},80,0,0,0," for t_s, mbps in rates]
        (directory / f"{name}.csv").write_text("\n".join([HEADER, *lines, ""]))
    source = TraceSource(files=tuple(str(directory / f"{name}.csv") for name in ("step", "steady")))
    return replace(CELL, radio=replace(CELL.radio, source=source))


def decided(config: CellConfig, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Mapping[bytes, Decided]]]:
    """All decisions of a run with their times."""
    found: list[tuple[float, Mapping[bytes, Decided]]] = []
    apply = DecidedHints.apply

    def seen(hints: DecidedHints, decisions: Decisions) -> None:
        found.append((asyncio.get_running_loop().time(), decisions.ues))
        apply(hints, decisions)

    monkeypatch.setattr(DecidedHints, "apply", seen)
    run_cell(config)
    return found


def windows(decisions: Sequence[Mapping[bytes, Decided]]) -> dict[bytes, list[int]]:
    """Windows of each UE."""
    return {name: [ues[name].window for ues in decisions if name in ues] for name in decisions[-1]}


def settled(decisions: Sequence[Mapping[bytes, Decided]]) -> int:
    """Decisions until weights stay near their later mean."""
    weights = [{name: one.weight or 0.0 for name, one in ues.items()} for ues in decisions]
    later = {name: np.mean([one[name] for one in weights[-LATER:]]) for name in weights[-1]}
    far = [n for n, ues in enumerate(weights) if any(abs(ues[name] / later[name] - 1) > NEAR for name in ues)]
    return max(far, default=-1) + 1


@pytest.mark.parametrize("make", [more_load, worse_channel])
@pytest.mark.parametrize("seed", [0, 1])
def test_decisions_settle_after_a_step(
    make: Callable[[Path], CellConfig], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = decided(replace(make(tmp_path), seed=seed), monkeypatch)
    before = [ues for t_s, ues in found if STEP_S - 1 < t_s < STEP_S]
    after = [ues for t_s, ues in found if t_s >= STEP_S]
    assert len(after) > 300
    changes = [sum(one != next_one for one, next_one in pairwise(found)) for found in windows(after).values()]
    assert max(changes) <= CHANGES
    assert settled(after) <= WEIGHTS
    assert max(abs((after[-1][name].weight or 0) - (one.weight or 0)) for name, one in before[-1].items()) > 0.005
    if make is worse_channel:
        worse = [name for name in before[-1] if name != ue_name(1)]
        assert sum(after[SHORTER][name].window for name in worse) < sum(before[-1][name].window for name in worse)


def test_a_cancelled_controller_ends_though_something_changes_meanwhile() -> None:
    """The end of a response at the end of a run kept the controller running, and the run waited for it in vain."""

    async def run() -> bool:
        estimates, clock = CellEstimates(), WallClock()
        members = [FIRST] * FIRST.count
        air = CELL.radio.air(radio_ues(CELL), CELL.seconds, CELL.seed)
        cell = RadioCell(CELL.radio, air, CELL.seed)
        ports = [{True: cell.port(ue, True, 1.0), False: cell.port(ue, False, 1.0)} for ue in range(len(members))]
        controller = JointController(
            CELL, members, RelayedCell(cell, air, ports), estimates, lambda decisions: None,
            lambda: {"passes": 0, "busy_s": 0.0}, clock,
        )  # fmt: skip
        running = [asyncio.ensure_future(controller.run([UeTally(clock, 0.0, 1.0) for _ in members]))]
        await asyncio.sleep(0.01)
        estimates.changed()
        running[0].cancel()
        done, _ = await asyncio.wait(running, timeout=2.0)
        running[0].cancel()
        return bool(done)

    assert asyncio.run(run())
