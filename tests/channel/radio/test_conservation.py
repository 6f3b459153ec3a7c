"""Bits of a cell in every slot: none is lost or made, and no slot carries more than it holds."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.channel.radio.air import ConstantAir
from testbed.channel.radio.config import Harq, RadioConfig
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.ports import Block, RadioPort
from testbed.channel.radio.sharing import RADIO_SCHEDULERS
from testbed.virtual_time import run_virtually
from tests.channel.radio.test_mac import HERTZ, SLOT_S, Sender


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30_000), st.floats(0, 0.02)), min_size=1, max_size=25),
    st.sampled_from(sorted(RADIO_SCHEDULERS)),
    st.sampled_from([0.0, 0.4]),
    st.tuples(*[st.floats(0.1, 6.0)] * 4),
    st.integers(0, 2**32),
)
def test_bits_are_conserved_in_every_slot(
    sends: list[tuple[int, int, float]], kind: str, bler: float, efficiencies: tuple[float, ...], seed: int
) -> None:
    """No slot carries more than it holds. After each slot, the bits of a UE's messages are those that have arrived,
    that wait for the first time, and that wait to be sent again.
    """
    used: dict[int, float] = {}
    sent, good = [0.0] * 4, [0.0] * 4

    def watch(port: RadioPort, ue: int) -> None:
        take, end_slot = port.take, port.end_slot

        def taken(slot: int, bits: float) -> list[Block]:
            parts = take(slot, bits)
            assert sum(part.bits for part in parts) == pytest.approx(bits)
            used[slot] = used.get(slot, 0.0) + bits / (HERTZ * efficiencies[ue] * SLOT_S)
            return parts

        def ended(parts: list[Block], lost: bool) -> None:
            end_slot(parts, lost)
            good[ue] += 0.0 if lost else sum(part.bits for part in parts)
            again = sum(block.bits for block in port._again)
            assert sent[ue] == pytest.approx(good[ue] + port._end - port._next + again, abs=0.1)

        port.take, port.end_slot = taken, ended  # type: ignore[method-assign]

    async def run() -> None:
        radio = RadioConfig(bandwidth_hz=HERTZ, harq=Harq(bler=bler), scheduler=kind)
        cell = RadioCell(radio, ConstantAir(efficiencies, bler), seed)
        senders = [Sender(cell.port(ue, True)) for ue in range(4)]
        for ue, sender in enumerate(senders):
            watch(sender.port, ue)
        events = []
        for ue, size, wait_s in sends:
            await asyncio.sleep(wait_s)
            sent[ue] += 8 * size
            events.append(senders[ue].send(size))
        for event in events:
            await event.wait()

    run_virtually(run())
    assert max(used.values()) <= 1 + 1e-9
    assert good == pytest.approx(sent, abs=0.1)
