"""The MAC of a cell, against the rates that it divides, an M/D/1 queue, and proportional fairness by its recursion."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.channel.radio.air import AirState
from testbed.channel.radio.config import ConstantSource, Harq, RadioConfig
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.model import RadioUe
from testbed.channel.radio.ports import RadioPort
from testbed.channel.radio.sharing import RADIO_SCHEDULERS
from testbed.errors import BadInput
from testbed.virtual_time import run_virtually
from tests.support.refusals import refuse

HERTZ, EFFICIENCY, SLOT_S = 20e6, 2.0, 1e-3
BITS_PER_SLOT = HERTZ * EFFICIENCY * SLOT_S


class Sender:
    """Sends messages through a port, and notes when each arrives."""

    def __init__(self, port: RadioPort) -> None:
        self.port = port
        self.delays_s: list[float] = []
        self.arrived: list[int] = []
        self._sent = 0

    def send(self, size_bytes: float) -> asyncio.Event:
        loop, number, event = asyncio.get_running_loop(), self._sent, asyncio.Event()
        sent_s, self._sent = loop.time(), self._sent + 1

        def deliver() -> None:
            self.delays_s.append(loop.time() - sent_s)
            self.arrived.append(number)
            event.set()

        self.port.carry(size_bytes, deliver)
        return event


def cell(ues: int = 1, seed: int = 0, harq: Harq = Harq(), **config: Any) -> RadioCell:  # noqa: B008
    radio = RadioConfig(bandwidth_hz=HERTZ, harq=harq, **config)
    return RadioCell(radio, radio.air([RadioUe(0)] * ues), seed)


async def backlogged(radio: RadioCell, sizes: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Arrival times of one message per UE, all sent at once."""
    senders = [Sender(radio.port(ue, True, weight)) for ue, weight in enumerate(weights)]
    for event in [sender.send(size) for sender, size in zip(senders, sizes, strict=True)]:
        await event.wait()
    return [sender.delays_s[0] for sender in senders]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**6), st.floats(0, 0.01), st.sampled_from([0.0, 0.004]), st.sampled_from(["fdd", "tdd"]))
def test_a_message_alone_takes_its_bits_over_the_rate(size: int, at_s: float, grant_s: float, duplex: str) -> None:
    async def run() -> float:
        radio = cell(grant_ms=1e3 * grant_s, duplex=duplex)
        sender = Sender(radio.port(0, True))
        await sender.send(1).wait()  # the cell's slots begin with its first message
        await asyncio.sleep(at_s)
        await sender.send(size).wait()
        return sender.delays_s[1]

    if duplex == "fdd":
        least_s = 8 * size / (HERTZ * EFFICIENCY)
        assert least_s - 1e-9 <= run_virtually(run()) <= least_s + grant_s + 2 * SLOT_S + 1e-9
    else:  # one slot of five
        laps = math.ceil(8 * size / BITS_PER_SLOT - 1e-9)
        assert (laps - 1) * 5 * SLOT_S <= run_virtually(run()) <= laps * 5 * SLOT_S + grant_s + 2 * SLOT_S


@pytest.mark.parametrize(("at_ms", "arrives_ms"), [(0.0, 3), (0.1, 13), (9.9, 13), (10.0, 13), (10.1, 23)])
def test_a_message_waits_for_its_request_and_its_grant(at_ms: float, arrives_ms: int) -> None:
    """Requests every 10 ms, grants 2 ms later, and a slot."""

    async def run() -> float:
        radio = cell(request_ms=10.0, grant_ms=2.0)
        start_s = radio.begin()
        await asyncio.sleep(at_ms / 1e3)
        await Sender(radio.port(0, True)).send(100).wait()
        return asyncio.get_running_loop().time() - start_s

    assert run_virtually(run()) == pytest.approx(arrives_ms / 1e3)


def test_two_equal_ues_get_half_each_and_weights_their_proportion() -> None:
    size = 1000 * BITS_PER_SLOT / 8
    assert run_virtually(backlogged(cell(2), [size, size], [1, 1])) == pytest.approx([2.0, 2.0])
    first, second = run_virtually(backlogged(cell(2, scheduler="weights"), [size, size], [3, 1]))
    assert first == pytest.approx(4 / 3, abs=2 * SLOT_S)  # at three quarters of the rate
    assert second == pytest.approx(2.0)


def test_a_message_is_delayed_by_those_of_other_ues() -> None:
    size = 10 * BITS_PER_SLOT / 8
    alone = run_virtually(backlogged(cell(1), [size], [1]))
    among = run_virtually(backlogged(cell(8), [size] * 8, [1] * 8))
    assert alone == pytest.approx([0.010])
    assert among == pytest.approx([0.080] * 8)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30_000), st.floats(0, 0.02)), min_size=1, max_size=25),
    st.sampled_from(sorted(RADIO_SCHEDULERS)),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from(["fdd", "tdd"]),
    st.integers(0, 2**32),
)
def test_bits_are_conserved_and_messages_arrive_in_order(
    sends: list[tuple[int, int, float]], kind: str, bler: float, duplex: str, seed: int
) -> None:
    async def run() -> None:
        radio = cell(4, seed, Harq(bler=bler), scheduler=kind, duplex=duplex, grant_ms=2.0)
        senders = [Sender(radio.port(ue, True)) for ue in range(4)]
        events = []
        for ue, size, wait_s in sends:
            await asyncio.sleep(wait_s)
            events.append(senders[ue].send(size))
        for event in events:
            await event.wait()
        counted = radio.counters[True]
        sent = sum(8 * size for _, size, _ in sends)
        assert counted.carried_bits <= counted.used * BITS_PER_SLOT + 1e-3
        assert counted.used <= counted.slots + 1e-9
        assert (counted.carried_bits == pytest.approx(sent)) == (counted.lost == 0)
        assert counted.carried_bits >= sent - 1e-3
        assert all(sender.arrived == sorted(sender.arrived) for sender in senders)
        await asyncio.sleep(1.0)
        slots = counted.slots
        await asyncio.sleep(1.0)
        assert counted.slots == slots  # idle

    run_virtually(run())


def test_lost_blocks_cost_harq_round_trips() -> None:
    """Messages of one block: the number of transmissions is geometric, and each loss costs HARQ's round trip."""

    async def run() -> list[float]:
        radio = cell(1, harq=Harq(bler=0.3, rtt_ms=8.0, attempts=64))
        sender = Sender(radio.port(0, True))
        for _ in range(3000):
            await sender.send(100).wait()
            await asyncio.sleep(0.01)
        return sender.delays_s

    delays_s = np.array(run_virtually(run()))
    losses = np.rint((delays_s - delays_s.min()) / 0.008)
    assert delays_s == pytest.approx(delays_s.min() + 0.008 * losses, abs=1e-6)
    assert losses.mean() == pytest.approx(0.3 / 0.7, rel=0.1)
    assert (losses == 0).mean() == pytest.approx(0.7, abs=0.03)


def test_what_arrives_while_a_lost_block_waits_is_not_sent_in_a_slot_that_has_begun() -> None:
    """The first block is lost in slot 0 and sent again in slot 8. The next message is there after the beginning of slot
    3, is sent in slot 4, and arrives with the first one, in order.
    """

    async def run() -> list[tuple[int, float]]:
        radio, sent = cell(harq=Harq(rtt_ms=8.0)), list[tuple[int, float]]()
        radio._used = lambda slot, ue, up, share: sent.append((slot, asyncio.get_running_loop().time()))
        radio._air.state = lambda ue, up, t_s: AirState(EFFICIENCY, float(t_s == 0))  # type: ignore[method-assign]
        sender = Sender(radio.port(0, True))
        first = sender.send(BITS_PER_SLOT / 16)
        await asyncio.sleep(0.0035)
        last = sender.send(BITS_PER_SLOT / 16)
        await first.wait()
        await last.wait()
        return sent

    sent = run_virtually(run())
    assert [slot for slot, _ in sent] == [0, 4, 8]
    assert [at_s for _, at_s in sent] == pytest.approx([0.0, 0.004, 0.008])


def test_rlc_sends_again_what_harq_gave_up() -> None:
    async def run() -> float:
        radio = cell(1, 3, Harq(bler=0.5, attempts=1, rlc_ms=50.0))
        sender = Sender(radio.port(0, True))
        for _ in range(50):
            await sender.send(100).wait()
        return max(sender.delays_s)

    assert run_virtually(run()) >= 0.05


def test_an_md1_queue_has_its_waiting_time() -> None:
    """Poisson arrivals of messages of 20 slots at utilisation 0.7: W = ρ S / (2 (1 − ρ)), to within a slot."""
    service_s, rho = 20 * SLOT_S, 0.7
    size = 20 * BITS_PER_SLOT / 8

    async def run() -> list[float]:
        random = np.random.default_rng(5)
        radio = cell()
        sender = Sender(radio.port(0, True))
        events = []
        for gap_s in random.exponential(service_s / rho, 20_000):
            await asyncio.sleep(gap_s)
            events.append(sender.send(size))
        for event in events:
            await event.wait()
        return sender.delays_s

    waits_s = np.array(run_virtually(run())) - service_s
    expected_s = rho * service_s / (2 * (1 - rho))
    means = waits_s.reshape(20, -1).mean(axis=1)  # batch means
    half = 2.86 * means.std(ddof=1) / math.sqrt(20)  # 99 %
    assert expected_s - half - SLOT_S <= waits_s.mean() <= expected_s + half + SLOT_S


class Varying:
    """Random efficiencies by slot and UE."""

    def __init__(self, table: np.ndarray[Any, Any]) -> None:
        self.table = table

    def efficiency(self, ue: int, up: bool, t_s: float) -> float:
        return self.state(ue, up, t_s).bits_per_s_per_hz

    def state(self, ue: int, up: bool, t_s: float) -> AirState:
        return AirState(float(self.table[round(t_s / SLOT_S) % len(self.table), ue]), 0.0)

    def learn(self, ue: int, up: bool, lost: bool) -> None:
        pass


def proportional_fair(rates: np.ndarray[Any, Any], served: Callable[[np.ndarray[Any, Any]], int]) -> list[int]:
    """UE of each slot by T ← β T + (1 − β) R (Jalali et al. 2000), starting from T = 1."""
    average, last, chosen = np.ones(rates.shape[1]), np.zeros(rates.shape[1]), []
    for rate in rates:
        average = 0.98 * average + 0.02 * last
        ue = served(rate / average)
        last = np.where(np.arange(rate.size) == ue, rate, 0.0)
        chosen.append(ue)
    return chosen


def test_proportional_fair_serves_the_ues_that_its_recursion_names() -> None:
    table = np.random.default_rng(1).uniform(0.2, 5.0, (400, 3))
    taken: list[int] = []

    async def run() -> None:
        radio = RadioCell(RadioConfig(bandwidth_hz=HERTZ, scheduler="proportional-fair"), Varying(table))
        for ue in range(3):
            port = radio.port(ue, True)
            take = port.take

            def noted(slot: int, bits: float, ue: int = ue, take: Any = take) -> Any:
                taken.append(ue)
                return take(slot, bits)

            port.take = noted  # type: ignore[method-assign]
            port.carry(1e9, lambda: None)
        await asyncio.sleep(400 * SLOT_S - 1e-4)

    run_virtually(run())
    assert taken == proportional_fair(table * HERTZ * SLOT_S, lambda metric: int(metric.argmax()))


def carried_bits(table: np.ndarray[Any, Any], scheduler: str, weights: Sequence[float]) -> list[float]:
    """Bits of each UE over these spectral efficiencies, [slots, UEs], while all have data."""
    found = [0.0] * len(weights)

    async def run() -> None:
        radio = RadioCell(RadioConfig(bandwidth_hz=HERTZ, scheduler=scheduler), Varying(table))
        for ue, weight in enumerate(weights):
            port = radio.port(ue, True, weight)

            def noted(slot: int, bits: float, ue: int = ue, take: Any = port.take) -> Any:
                found[ue] += bits
                return take(slot, bits)

            port.take = noted  # type: ignore[method-assign]
            port.carry(1e9, lambda: None)
        await asyncio.sleep(len(table) * SLOT_S - 1e-4)

    run_virtually(run())
    return found


def test_opportunistic_shares_follow_weights_and_fading_and_carry_more() -> None:
    table, weights = np.random.default_rng(2).uniform(0.5, 4.0, (2000, 3)), (1.0, 1.0, 2.0)
    mean, expected = table[0].copy(), np.zeros(3)
    for slot, rate in enumerate(table):
        mean = rate if slot == 0 else 0.99 * mean + 0.01 * rate
        shares = np.array(weights) * (rate / mean) ** 4
        expected += shares / shares.sum() * rate * HERTZ * SLOT_S
    found = carried_bits(table, "opportunistic", weights)
    assert found == pytest.approx(expected, rel=1e-6)
    equal = carried_bits(table, "weights", weights)
    assert sum(found) > 1.2 * sum(equal)


def test_bad_parameters() -> None:
    refuse(lambda: RadioConfig(bandwidth_hz=0), BadInput, "bandwidth-hz must lie in [1000, 1e+11]")
    refuse(lambda: RadioConfig(scheduler="lottery"), BadInput, "known: round-robin, proportional-fair")
    none = RadioConfig(source=ConstantSource(bits_per_s_per_hz=0.0))
    refuse(lambda: none.air([RadioUe(0)]), BadInput, "(0, 100] bit/s/Hz")
    two = RadioConfig(source=ConstantSource(bits_per_s_per_hz=(1.0, 2.0)))
    refuse(lambda: two.air([RadioUe(group) for group in (0, 0, 1, 2)]), BadInput, "2 efficiencies do not fit 3 groups")
    refuse(lambda: cell().port(0, True, weight=0.0), BadInput, "a weight must be positive")
