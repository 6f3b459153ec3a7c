"""A cell whose bytes the kernel's HTB carries between network namespaces."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec
import pytest

from testbed.channel.radio.config import ConstantSource, Harq, RadioConfig
from testbed.channel.tc.run import NAMESPACES
from testbed.channel.tc.shared import SharedCell
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellBs, CellConfig, CellControl, UeGroup
from testbed.experiments.cell.real.kernel import KernelRadio, shared_cell
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from tests.channel.tc.test_real import REASON
from tests.channel.tc.test_shared import saturated
from tests.support.refusals import refuse

RADIO = RadioConfig(bandwidth_hz=2e6, scheduler="weights")
CELL = CellConfig(
    seconds=12.0,
    warmup_s=2.0,
    carrier="tc",
    radio=RADIO,
    ues=tuple(
        UeGroup(name=f"{weight:g}", weight=weight, count=count, profile="wisv", protocol="fh", response=(20, 60))
        for weight, count in ((4.0, 1), (2.0, 1), (1.0, 2))
    ),
    bs=CellBs(profile="a100-qwen3-32b-appendix", scheduler="slo"),
)
needs_htb = pytest.mark.skipif(REASON is not None, reason=REASON or "")


def changed(**fields: Any) -> CellConfig:
    return msgspec.structs.replace(CELL, **fields)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (changed(radio=msgspec.structs.replace(RADIO, duplex="tdd")), "constant rates"),
        (changed(radio=msgspec.structs.replace(RADIO, source=ConstantSource((1.0, 2.0, 3.0)))), "one efficiency"),
        (changed(radio=msgspec.structs.replace(RADIO, grant_ms=4.0)), "no delays or losses"),
        (changed(radio=msgspec.structs.replace(RADIO, harq=Harq(bler=0.1))), "no delays or losses"),
        (changed(radio=msgspec.structs.replace(RADIO, scheduler="max-min")), "not by max-min"),
        (changed(ues=(*CELL.ues, UeGroup(name="bytes", traffic="bytes"))), "leave out groups of bytes"),
    ],
)
def test_what_the_kernel_does_not_have(config: CellConfig, says: str) -> None:
    refuse(lambda: run_cell_really(config), BadInput, says)


@pytest.mark.root
@pytest.mark.slow
@needs_htb
def test_processes_get_what_weights_say_as_in_virtual_time() -> None:
    """Lossless, or it raises."""
    real, virtual = (document(CELL, run(CELL)) for run in (run_cell_really, run_cell))
    pairs = list(zip(real["rows"], virtual["rows"], strict=True))
    for ours, theirs in pairs:
        assert ours["goodput_tps"] == pytest.approx(theirs["goodput_tps"], rel=0.2), ours["group"]
    shares = [[row["uplink_mbps"] / rows[-1]["uplink_mbps"] for row in rows] for rows in zip(*pairs, strict=True)]
    assert shares[0] == pytest.approx(shares[1], rel=0.2)
    assert real["cell"]["uplink_utilisation"] == pytest.approx(virtual["cell"]["uplink_utilisation"], abs=0.1)


@pytest.mark.root
@pytest.mark.slow
@needs_htb
def test_decided_weights_reach_the_kernel() -> None:
    """Ports show who sends how much of the time, and their weights become those of the classes."""

    async def run(cell: SharedCell) -> tuple[list[float], list[float]]:
        radio = KernelRadio(CELL, cell.rates, cell.addresses, [1.0, 1.0, 1.0])
        running = asyncio.create_task(radio.run())
        await asyncio.sleep(1.0)
        for ports, weight in zip(radio.ports, (3.0, 2.0, 1.0), strict=True):
            ports[True].weight = weight
        await asyncio.sleep(1.0)
        before, begun_s = radio.counters(), time.monotonic()
        await asyncio.sleep(3.0)
        after, slots = radio.counters(), (time.monotonic() - begun_s) / CELL.radio.slot_s
        running.cancel()
        parts = [
            [
                (getattr(now[True], name) - getattr(then[True], name)) / slots
                for then, now in zip(before, after, strict=True)
            ]
            for name in ("used", "slots")
        ]
        return parts[0], parts[1]

    with SharedCell(os.getpid() + 1, (20.0, 20.0), [1.0, 1.0, 1.0]) as cell, saturated(cell):
        used, busy = asyncio.run(run(cell))
    assert used == pytest.approx([1 / 2, 1 / 3, 1 / 6], rel=0.15)
    assert busy == pytest.approx([1.0, 1.0, 1.0], abs=0.05)


@pytest.mark.root
@pytest.mark.slow
@needs_htb
def test_a_controller_decides_for_the_kernel() -> None:
    group = UeGroup(name="fh", count=2, profile="wisv", protocol="fh", window_rule="hinted", response=(5, 15))
    radio = msgspec.structs.replace(RADIO, scheduler="joint")
    config = changed(seconds=6.0, ues=(group,), radio=radio, control=CellControl(windows="joint", weights="joint"))
    found = document(config, run_cell_really(config))
    assert found["rows"][0]["goodput_tps"] > 0
    assert not (NAMESPACES / shared_cell(config, os.getpid()).namespace).exists(), "it is removed"
