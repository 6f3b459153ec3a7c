"""Schedulers of a radio slot, against brute force, plain recursions and Sionna's proportional-fair scheduler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.radio.sharing import RADIO_SCHEDULERS, Demand, water_filling

DEMANDS = st.lists(
    st.builds(
        Demand,
        need_bits=st.floats(1, 1e6),
        slot_bits=st.floats(1, 1e5),
        average_bits=st.floats(1e-3, 1e5),
        mean_bits=st.floats(1, 1e5),
        weight=st.floats(1e-3, 1e3),
        due_s=st.floats(0, 10),
    ),
    min_size=1,
    max_size=12,
)


@given(DEMANDS, st.sampled_from(sorted(RADIO_SCHEDULERS)))
def test_a_slot_is_used_as_far_as_there_are_data_and_never_more(demands: list[Demand], kind: str) -> None:
    shares = RADIO_SCHEDULERS[kind].share(demands)
    most = [demand.most for demand in demands]
    assert all(0 <= share <= limit + 1e-9 for share, limit in zip(shares, most, strict=True))
    assert sum(shares) == pytest.approx(min(1.0, sum(most)))


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(0, 1)), min_size=1, max_size=12))
def test_water_filling_is_the_level_found_by_bisection(parts: list[tuple[float, float]]) -> None:
    weights, most = np.array(parts).T
    low, high = 0.0, 1 / weights.min() + 1
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if np.minimum(most, level * weights).sum() < 1 else (low, level)
    assert water_filling(weights.tolist(), most.tolist()) == pytest.approx(np.minimum(most, high * weights), abs=1e-6)


def test_full_buffers_get_what_each_scheduler_is_named_for() -> None:
    demands = [Demand(1e9, 1000, 100, 500, 3, 2.0), Demand(1e9, 4000, 500, 4000, 1, 1.0)]
    shares = {kind: entry.share(demands) for kind, entry in RADIO_SCHEDULERS.items()}
    assert shares["round-robin"] == [0.5, 0.5]
    assert shares["weights"] == [0.75, 0.25]
    assert shares["opportunistic"] == shares["joint"] == pytest.approx([48 / 49, 1 / 49])
    assert shares["max-min"] == pytest.approx([0.8, 0.2])  # 800 bits each
    assert shares["proportional-fair"] == [1.0, 0.0]  # 10 against 8
    assert shares["edf"] == [0.0, 1.0]


def test_a_small_message_leaves_the_rest_to_the_others() -> None:
    small, large = Demand(100, 1000, due_s=0.0), Demand(1e9, 1000, due_s=1.0)
    for kind in RADIO_SCHEDULERS:
        assert RADIO_SCHEDULERS[kind].share([small, large]) == pytest.approx([0.1, 0.9]), kind
