"""Capacity runs: small ones, through the code that serves."""

from __future__ import annotations

import pytest

from testbed.experiments.capacity.run import run_capacity
from testbed.experiments.capacity.systems import SYSTEMS, CapacityConfig, spread
from testbed.experiments.capacity.tally import ANY, CLEAR, CapacityRun, ClassCount, keeps
from testbed.options import replaced

SMALL = CapacityConfig(
    horizon_s=10.0, warmup_s=3.0, judged=8, prompt=(20, 60), response=(10, 40), kv_tokens=2000, max_batch=4
)


def run(system: str, ues: int, speed: float = 4.0, config: CapacityConfig = SMALL, seed: int = 0) -> CapacityRun:
    return run_capacity(config, SYSTEMS[system], (speed,) * ues, seed)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_serves_a_light_load_in_time_and_breaks_down_under_a_heavy_one(system: str) -> None:
    light, heavy = run(system, 3), run(system, 3, 200.0)
    assert light.complete
    assert light.classes["4"].share == 0
    assert light.classes["4"].judged >= 8
    assert light.goodput_tps > 3 * 4
    assert heavy.classes["200"].share == 1


def test_the_same_seed_is_the_same_run_and_another_is_another() -> None:
    first, again, other = run("wisp", 6), run("wisp", 6), run("wisp", 6, seed=1)
    assert (first.goodput_tps, first.virtual_s, first.rounds) == (again.goodput_tps, again.virtual_s, again.rounds)
    assert first.virtual_s != other.virtual_s


def test_one_ue_alone_is_as_fast_as_its_parts_say() -> None:
    """A round of `fcfs-cache` by hand: five drafts, the network, and a pass; (1 − α^6)/(1 − α) tokens."""
    config = replaced(SMALL, {"horizon_s": 200.0, "response": (200, 200), "prompt": (50, 50)})
    found = run("fcfs-cache", 1, 1.0, config)
    pass_s = 3.314e-5 * 6 + 3.45e-8 * 6 * 155 + 4.62e-6 * 150 + 1.486e-2
    tokens = (1 - 0.758**6) / (1 - 0.758)
    assert found.goodput_tps == pytest.approx(tokens / (5 / 50 + 0.04 + pass_s), rel=0.03)
    assert found.accepted / found.drafted == pytest.approx(0.47, abs=0.03)


def test_recomputing_prefixes_costs_and_a_full_cache_evicts() -> None:
    long = replaced(SMALL, {"prompt": (300, 400), "kv_tokens": 20_000})
    crowded = replaced(long, {"kv_tokens": 2000})
    found = {"sled": run("sled", 20, config=long), "cached": run("fcfs-cache", 20, config=long)}
    assert found["sled"].goodput_tps < 0.5 * found["cached"].goodput_tps
    assert found["cached"].evicted_tokens == 0
    assert run("fcfs-cache", 20, config=crowded).evicted_tokens > 0


def test_centralized_requests_wait_for_memory() -> None:
    """With room for one of them at a time, requests go one after another."""
    scarce = replaced(SMALL, {"kv_tokens": 100, "prompt": (60, 60), "response": (30, 40)})
    assert run("centralized", 6, config=scarce).batch_size == 1
    assert run("centralized", 6).batch_size > 1


@pytest.mark.parametrize("ues", [8, 30, 45])
@pytest.mark.parametrize("until", [CLEAR, ANY])
def test_a_run_that_ends_early_says_what_the_whole_run_says(ues: int, until: str) -> None:
    config = replaced(SMALL, {"mix": {4: 1, 12: 1}})
    early, whole = (
        run_capacity(config, SYSTEMS["fcfs-cache"], spread(config, ues), 0, until=u) for u in (until, "all")
    )
    assert whole.complete
    assert early.holds(config.epsilon) == whole.holds(config.epsilon)
    assert early.virtual_s <= whole.virtual_s
    if until == ANY:
        verdicts = [{s: keeps(c, config.epsilon) for s, c in r.classes.items()} for r in (early, whole)]
        assert verdicts[0] == verdicts[1]


def test_counts_are_clear_only_when_nothing_can_change_them() -> None:
    assert keeps(ClassCount(judged=100, violated=6, kept=0), 0.05) is False
    assert keeps(ClassCount(judged=100, violated=3, kept=95), 0.05) is True
    assert keeps(ClassCount(judged=100, violated=3, kept=94), 0.05) is None


def test_events_and_passes_are_kept_where_asked() -> None:
    found = run_capacity(SMALL, SYSTEMS["wisp"], (4.0,) * 5, 0, events=True)
    assert found.events is not None
    assert len(found.events) == found.rounds
    assert found.passes
    busy_s = sum(seconds for _, seconds in found.passes)
    assert busy_s == pytest.approx(found.busy_share * found.virtual_s, rel=0.02)
