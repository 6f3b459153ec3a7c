"""Fluid link model: arrival times by hand, against a brute-force integration, and in distribution."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from testbed.channel.link_model import LEAST_MBPS, PACKET_BYTES, Direction, Recovery, Schedule, constant, round_delay
from testbed.errors import BadInput


def test_a_free_link_takes_no_time_and_says_so() -> None:
    direction = Direction(constant())
    assert direction.free
    assert [direction.admit(t, 10**6) for t in (0.0, 0.5, 0.5)] == [0.0, 0.5, 0.5]


def test_bytes_queue_behind_each_other_and_then_fly() -> None:
    direction = Direction(constant(rate_mbps=8.0, delay_s=0.1))  # a byte takes 1 µs
    assert not direction.free
    assert direction.admit(0.0, 1000) == pytest.approx(0.101)
    assert direction.admit(0.0, 1000) == pytest.approx(0.102)
    assert direction.admit(0.5, 500) == pytest.approx(0.6005)


def test_an_outage_holds_what_is_being_served() -> None:
    schedule = Schedule([0.0, 1.0], [8.0, 0.0], [0.0, 0.0], [0.0, 0.0], duration_s=1.5)
    direction = Direction(schedule, origin_s=100.0)
    assert direction.admit(100.9, 200_000) == pytest.approx(101.6)  # 0.1 s, an outage of 0.5 s, 0.1 s
    assert direction.admit(101.2, 100_000) == pytest.approx(101.7)
    assert direction.admit(102.6, 1000) == pytest.approx(103.001)  # in the second outage


pieces = st.lists(
    st.tuples(st.floats(0.05, 2.0), st.one_of(st.just(0.0), st.floats(0.5, 50.0))), min_size=1, max_size=6
)


def passed_bits(pieces: list[tuple[float, float]], loop: bool, begin_s: float, end_s: float) -> float:
    """Bits served between two times: the sum over all pieces of all periods of overlap times rate."""
    lap_s = sum(length for length, _ in pieces)
    bits, start_s = 0.0, 0.0
    for lap in range(int(end_s // lap_s) + 2 if loop else 1):
        start_s = lap * lap_s
        for i, (length, rate) in enumerate(pieces):
            stop_s = start_s + length if loop or i + 1 < len(pieces) else math.inf
            bits += rate * 1e6 * max(0.0, min(end_s, stop_s) - max(begin_s, start_s))
            start_s = stop_s
    return bits


@given(pieces, st.booleans(), st.lists(st.tuples(st.floats(0, 1.5), st.integers(1, 300_000)), min_size=1, max_size=12))
def test_between_start_and_arrival_exactly_what_was_sent_passes(
    given_pieces: list[tuple[float, float]], loop: bool, sends: list[tuple[float, int]]
) -> None:
    if not any(rate for _, rate in given_pieces) or (not loop and not given_pieces[-1][1]):
        given_pieces[-1] = (given_pieces[-1][0], 10.0)
    lengths, rates = ([*column] for column in zip(*given_pieces, strict=True))
    starts = [0.0, *np.cumsum(lengths)[:-1].tolist()]
    zeros = [0.0] * len(rates)
    direction = Direction(Schedule(starts, rates, zeros, zeros, float(sum(lengths)) if loop else None))
    now_s = arrived_s = 0.0
    for wait_s, size in sends:
        now_s += wait_s
        begin_s = max(now_s, arrived_s)
        arrived_s = direction.admit(now_s, size)
        assert passed_bits(given_pieces, loop, begin_s, arrived_s) == pytest.approx(8 * size, rel=1e-6, abs=1e-2)
        assert passed_bits(given_pieces, loop, begin_s, arrived_s - 1e-4) < 8 * size


def test_order_is_kept_when_the_delay_falls() -> None:
    direction = Direction(Schedule([0.0, 1.0], [math.inf] * 2, [0.5, 0.0], [0.0, 0.0]))
    assert direction.admit(0.9, 10) == pytest.approx(1.4)
    assert direction.admit(1.1, 10) == pytest.approx(1.4)
    assert direction.admit(2.0, 10) == pytest.approx(2.0)


@pytest.mark.parametrize("per", [0.01, 0.3, 0.9])
def test_packet_errors_cost_what_geometric_retransmission_costs_on_average(per: float) -> None:
    packets, sends = 20, 4000
    direction = Direction(constant(rate_mbps=12.0, per=per), seed=(3,))  # a packet takes 1 ms
    ends = np.array([direction.admit(0.0, packets * PACKET_BYTES) for _ in range(sends)])
    each_s = np.diff(ends, prepend=0.0)
    assert each_s.mean() == pytest.approx(packets * 1e-3 / (1 - per), rel=5 * math.sqrt(per / packets / sends))
    # variance of a geometric number of transmissions: p / (1 - p)²
    assert each_s.var() == pytest.approx(packets * 1e-6 * per / (1 - per) ** 2, rel=0.15)


def test_a_short_message_waits_for_harq_and_then_for_rlc() -> None:
    """Delays of one packet: after n losses n HARQ round trips, and RLC's delay in place of every fourth."""
    per, recovery = 0.5, Recovery(harq_rtt_s=0.008, attempts=4, rlc_s=0.04)
    late_s = np.zeros(20_000)
    for i in range(late_s.size):
        direction = Direction(constant(per=per), seed=(7, i), recovery=recovery)
        late_s[i] = direction.admit(0.0, 200)
    expected_s = {0.0: 1 / 2, 0.008: 1 / 4, 0.016: 1 / 8, 0.024: 1 / 16, 0.064: 1 / 32, 0.072: 1 / 64}
    for delay_s, chance in expected_s.items():
        found = np.isclose(late_s, delay_s).mean()
        assert found == pytest.approx(chance, abs=5 * math.sqrt(chance * (1 - chance) / late_s.size))


def test_a_long_message_recovers_while_its_rest_is_sent() -> None:
    """1,000 packets of 1 ms: almost all losses are repaired before the last packet, which costs 10 ms at p = 1/2."""
    recovery = Recovery(harq_rtt_s=0.01, attempts=100, rlc_s=0.01)
    plain, repaired = (
        Direction(constant(rate_mbps=12.0, per=0.5), seed=(1,), recovery=one).admit(0.0, 1000 * PACKET_BYTES)
        for one in (Recovery(), recovery)
    )
    assert 0 <= repaired - plain < 0.2 < 2 * 0.9 < plain


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"harq_rtt_s": 0.05, "rlc_s": 0.04}, "at least as long as a HARQ round trip"),
        ({"harq_rtt_s": -1.0}, "HARQ round trip"),
        ({"attempts": 0}, "at least 1 attempt"),
    ],
)
def test_recoveries_that_cannot_be(values: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Recovery(**values)


def test_jitter_is_uniform_around_the_delay() -> None:
    direction = Direction(constant(delay_s=0.02), jitter_s=0.01, seed=(5,))
    took_s = np.array([direction.admit(float(i), 100) - i for i in range(20_000)])
    assert 0.01 <= took_s.min() < 0.0101 and 0.0299 < took_s.max() <= 0.03
    assert took_s.mean() == pytest.approx(0.02, abs=5 * 0.01 / math.sqrt(3 * took_s.size))
    assert took_s.std() == pytest.approx(0.01 / math.sqrt(3), rel=0.02)
    with pytest.raises(BadInput, match="±30 ms needs a one-way delay of at least that, not 20 ms"):
        Direction(constant(delay_s=0.02), jitter_s=0.03)


def test_seeds_repeat_and_differ() -> None:
    def ends(seed: tuple[int, ...]) -> list[float]:
        direction = Direction(constant(1.0, 0.01, 0.2), jitter_s=0.002, seed=seed)
        return [direction.admit(i * 0.1, 3000) for i in range(50)]

    assert ends((1, 2)) == ends((1, 2)) != ends((1, 3))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([], [], [], []), "one rate"),
        (([0.0], [1.0, 2.0], [0.0], [0.0]), "one rate"),
        (([1.0], [1.0], [0.0], [0.0]), "increase from 0"),
        (([0.0, 0.0], [1.0] * 2, [0.0] * 2, [0.0] * 2), "increase from 0"),
        (([0.0, 1e-310], [1.0] * 2, [0.0] * 2, [0.0] * 2), "by 1e-09 s or more"),
        (([0.0, 1.0], [1.0] * 2, [0.0] * 2, [0.0] * 2, 1 + 1e-15), "cannot repeat"),
        (([0.0], [-1.0], [0.0], [0.0]), "rate_mbps must not be negative"),
        (([0.0], [math.nan], [0.0], [0.0]), "rate_mbps must not be negative"),
        (([0.0], [1.0], [math.inf], [0.0]), "finite"),
        (([0.0, 1.0], [1e308, 1e308], [0.0] * 2, [0.0] * 2, 2.0), r"at most 1e\+12, or infinite"),
        (([0.0], [1.0], [0.0], [1.0]), r"\[0, 1\)"),
        (([0.0], [0.0], [0.0], [0.0]), "nothing ever passes"),
        (([0.0, 1.0], [1.0, 0.0], [0.0] * 2, [0.0] * 2), "nothing ever passes"),
        (([0.0, 1.0], [1.0, 1.0], [0.0] * 2, [0.0] * 2, 1.0), "cannot repeat"),
        (([0.0], [1e-320], [0.0], [0.0]), "1e-06 Mbit/s or more in the long run, not 9.99989e-321"),
        (([0.0, 1.0], [1.0, 1e-320], [0.0] * 2, [0.0] * 2), "in the long run"),
        (([0.0, 1.0], [1e-320, 0.0], [0.0] * 2, [0.0] * 2, 2.0), "in the long run, not 4.99994e-321"),
        (([0.0, 1e-7], [1.0, 0.0], [0.0] * 2, [0.0] * 2, 1.0), "in the long run, not 1e-07"),
    ],
)
def test_schedules_that_cannot_be(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Schedule(*arguments)


def test_a_round_takes_its_time_half_of_it_each_way() -> None:
    up, down = round_delay(0.04, 0.5, 7)
    trips = []
    for i in range(2000):
        there_s = up.admit(10.0 * i, 100) - 10.0 * i
        back_s = down.admit(10.0 * i + 5, 100) - 10.0 * i - 5
        assert there_s == pytest.approx(back_s)
        trips.append(there_s + back_s)
    assert 0.02 <= min(trips) < 0.0202
    assert 0.0598 < max(trips) <= 0.06
    assert np.mean(trips) == pytest.approx(0.04, abs=0.001)
    assert np.std(trips) == pytest.approx(0.04 / np.sqrt(12), rel=0.05)


def test_messages_do_not_overtake_each_other() -> None:
    up, _ = round_delay(0.1, 1.0, 1)
    arrivals = [up.admit(0.001 * i, 10) for i in range(200)]
    assert arrivals == sorted(arrivals)


@given(
    st.lists(st.integers(-8, -3), min_size=2, max_size=6),
    st.lists(st.floats(0.5, 50), min_size=7, max_size=7),
    st.booleans(),
    st.floats(0, 1e6),
)
def test_pieces_shorter_than_the_clock_resolves_end(
    powers: list[int], rates: list[float], loop: bool, start_s: float
) -> None:
    """A trace with short steps kept its relay from ending: late in a run, time went on by nothing."""
    starts = [0.0, *np.cumsum([10.0**power for power in powers]).tolist()]
    assume(all(b > a for a, b in itertools.pairwise(starts)))
    duration_s = starts.pop() if loop else None
    n = len(starts)
    given_mbps = [rate * (i % 2 or not loop) for i, rate in enumerate(rates[:n])]
    if duration_s is not None:
        lasts_s = np.diff([*starts, duration_s])
        assume(float(np.dot(given_mbps, lasts_s)) / duration_s > 2 * LEAST_MBPS)
    schedule = Schedule(starts, given_mbps, [0.0] * n, [0.0] * n, duration_s)
    for bits in (1.0, 576.0, 12_000.0):
        end_s = schedule.served_s(start_s, bits)
        slowest = 1e6 * (min(rates) if not loop else schedule._mean_mbps)
        assert start_s <= end_s <= start_s + bits / slowest + 2 * (duration_s or 0.0) + 1e-9 * start_s + 1e-9


def test_bytes_that_enter_between_two_pieces_of_a_link_without_a_limit_arrive() -> None:
    """An infinite rate for no time was not a number, and so was all that followed."""
    schedule = Schedule([0.0, 0.9], [math.inf, 0.0], [0.0] * 2, [0.0] * 2, 1.0)
    for start_s in np.linspace(0, 50, 1001).tolist():
        end_s = schedule.served_s(start_s, 8e3)
        assert end_s == pytest.approx(start_s if start_s % 1.0 < 0.9 - 1e-6 else math.ceil(start_s), abs=1e-6)


def test_laps_of_a_slow_link_are_skipped_and_not_walked() -> None:
    """Rates of 1e-300 Mbit/s, which an agent reported, kept the report of a field run from ending."""
    schedule = Schedule([0.0, 1.0, 3.0], [0.0, 2e-3, 1e-3], [0.0] * 3, [0.0] * 3, 4.0)  # 5,000 bits per lap of 4 s
    for bits in (1.0, 3_999.0, 4_000.0, 5_000.0, 5_001.0, 12_345.0, 1e6):
        for start_s in (0.0, 0.5, 1.5, 3.25, 9.0):
            assert schedule.served_s(start_s, bits) == pytest.approx(walked_s(schedule, start_s, bits), rel=1e-9)
    began_s = time.process_time()
    assert schedule.served_s(0.0, 5e15) == pytest.approx(4e12, rel=1e-9)
    assert time.process_time() - began_s < 1.0


def walked_s(schedule: Schedule, start_s: float, bits: float) -> float:
    """The same, piece by piece."""
    while True:
        index, end_s = schedule.piece(start_s)
        room = schedule.rate_mbps[index] * 1e6 * (end_s - start_s)
        if room >= bits:
            return start_s + bits / (schedule.rate_mbps[index] * 1e6)
        bits, start_s = bits - room, end_s
