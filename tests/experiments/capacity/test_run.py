"""Capacity runs: small ones, through the code that serves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import Pending
from testbed.bs.scheduling.base import Scheduler
from testbed.bs.scheduling.registry import SCHEDULERS, SchedulerEntry
from testbed.bs.scheduling.slo import Slo
from testbed.errors import BadInput
from testbed.experiments.capacity.bs import Observed
from testbed.experiments.capacity.config import CapacityConfig, hardware, spread
from testbed.experiments.capacity.run import run_capacity
from testbed.experiments.capacity.systems import SYSTEMS, system_of
from testbed.experiments.capacity.tally import ANY, CLEAR, CapacityRun, ClassCount, keeps
from testbed.experiments.deployment.traffic_bs import PrefixCache, TrafficRunner
from testbed.options import replaced
from testbed.virtual_time import VirtualClock

SMALL = CapacityConfig(
    horizon_s=10.0,
    warmup_s=3.0,
    judged=8,
    judged_class=0,
    prompt=(20, 60),
    response=(10, 40),
    kv_tokens=2000,
    max_batch=4,
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
    config = replaced(SMALL, {"mix": {4: 1, 12: 1}, "judged_class": 60})
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


# ---------------------------------------------------------------- rules


class Never20(Scheduler):
    """First come, first served, except that class 20 is served only if nothing else waits."""

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        return sorted(pending, key=lambda item: (item.speed_tps == 20.0, item.arrived_s))[:2]


def test_a_class_that_is_starved_is_violated_and_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its responses all begin before the horizon and never end; the fast class is always waiting."""
    monkeypatch.setitem(
        SCHEDULERS._entries, "never-20", SchedulerEntry(kind="never-20", about="", make=lambda _: Never20())
    )
    changes = {"draft_tps": 1e4, "network_ms": 0.0, "mix": {20: 1, 8: 9}, "horizon_s": 4.0, "judged_class": 60}
    config = replaced(SMALL, changes)
    for until in ("all", ANY, CLEAR):
        found = run_capacity(config, system_of("never-20-cache"), spread(config, 30), 0, until=until)
        starved = found.classes["20"]
        assert starved.verdict(config.epsilon) != "kept" and not found.holds(config.epsilon)
    assert found.classes["8"].kept > 60 and starved.starved == starved.violated == 3 and starved.share == 1


def test_few_ues_are_run_for_as_long_as_it_takes_to_judge_them() -> None:
    """One UE begins about 30 of the 60 responses that decide within nine horizons; the capacity found was 0."""
    config = replaced(SMALL, {"horizon_s": 10.0, "judged_class": 60})
    found = run("centralized", 1, 10.0, config)
    assert found.holds(config.epsilon) and found.classes["10"].judged >= 60


def test_what_too_few_judged_responses_decide_is_not_taken_for_too_many_ues() -> None:
    config = replaced(SMALL, {"horizon_s": 5.0, "judged": 1, "judged_class": 0})
    with pytest.raises(BadInput, match=r"1 UEs: \d+ responses of 10 tokens/s were judged, of 60 that decide"):
        run("centralized", 1, 10.0, config).holds(config.epsilon)


def test_a_class_that_judged_nobody_is_undecided() -> None:
    assert keeps(ClassCount(), 0.05) is None and ClassCount().verdict(0.05) == "undecided"
    assert ClassCount(judged=59, kept=59).verdict(0.05) == "undecided"
    assert ClassCount(judged=60, kept=60).verdict(0.05) == "kept"
    assert ClassCount(judged=60, kept=56, violated=4).verdict(0.05) == "violated"


def test_the_horizon_grows_until_each_class_is_judged_often_enough() -> None:
    config = replaced(SMALL, {"mix": {4: 7, 12: 1}, "judged_class": 60, "judged": 10})
    found = run_capacity(config, SYSTEMS["fcfs-cache"], spread(config, 16), 0)
    assert all(count.judged >= 60 for count in found.classes.values())


def test_loads_draw_their_own_arrivals_and_systems_share_them() -> None:
    """Compared by the first pass: its requests, new and cached tokens, and its time."""
    first = {}
    for system, ues in itertools.product(("fcfs-cache", "sled"), (3, 4)):
        found = run_capacity(SMALL, SYSTEMS[system], (4.0,) * ues, 0, events=True)
        assert found.passes
        first[system, ues] = found.passes[0]
    assert first["fcfs-cache", 3] == first["sled", 3] != first["fcfs-cache", 4] == first["sled", 4]


class Probe(Observed):
    """Records what a scheduler expects of each round."""

    seen: ClassVar[list[tuple[int, float, float | None]]] = []

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        batch = super().plan(pending, now_s)
        slo = self._scheduler
        assert isinstance(slo, Slo)
        self.seen.extend((len(item.request.draft), slo.expected(item), item.acceptance) for item in batch)
        return batch


def test_of_an_empty_window_one_token_is_expected_and_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And α is that of the tokens that were sent: by Bayes' rule from α, TPR and FPR."""
    monkeypatch.setattr("testbed.experiments.capacity.run.Observed", Probe)
    Probe.seen.clear()
    config = replaced(SMALL, {"horizon_s": 60.0, "judged": 200})
    found = run("wisp", 6, config=config)
    empty = [expected for drafted, expected, _ in Probe.seen if not drafted]
    assert set(empty) == {1.0}
    doubted = 1 - 0.758 * 0.8 - 0.242 * 0.425
    assert found.empty / found.rounds == pytest.approx(doubted, abs=0.02)
    sent = 0.758 * 0.8 / (0.758 * 0.8 + 0.242 * 0.425)
    late = [alpha for _, _, alpha in Probe.seen[-500:] if alpha is not None]
    assert np.mean(late) == pytest.approx(sent, abs=0.03)
    twos = [expected for drafted, expected, _ in Probe.seen[-2000:] if drafted == 2]
    assert np.mean(twos) == pytest.approx(1 + sent + sent**2, abs=0.05)


def test_evictions_are_seen_before_the_pass() -> None:
    """A scheduler that limits new tokens takes fewer requests, once their prefixes are gone."""
    cache = PrefixCache(100, tail=False)
    runner = TrafficRunner(hardware(SMALL).verify, cache, VirtualClock(), linger=False)
    rounds = [VerifyRequest(name, np.arange(90, dtype=np.int32), np.zeros(0, np.int32)) for name in "ab"]
    cache.hold("a", 80)
    assert [runner.cached(one) for one in rounds] == [80, 0]
    cache.hold("b", 60)
    assert [runner.cached(one) for one in rounds] == [0, 60]


def test_a_small_memory_binds_and_a_large_one_does_not() -> None:
    config = replaced(SMALL, {"prompt": (100, 400), "kv_tokens": 900, "max_batch": 8})
    assert run("wisp", 12, config=config).memory_bound > 0.1
    assert run("wisp", 12, config=replaced(config, {"kv_tokens": 50_000})).memory_bound == 0


def test_schedulers_plan_by_wrong_pass_times() -> None:
    """With twice the pass times, fewer requests fit before a deadline; first come, first served plans by none."""
    right, wrong = SMALL, replaced(SMALL, {"estimate_bias": 3.0})
    for system, same in (("wisp-fixed", False), ("fcfs-cache", True)):
        batches = [run(system, 14, 12.0, config).batch_size for config in (right, wrong)]
        assert (batches[0] == batches[1]) == same


def test_bytes_take_time_on_a_slow_link() -> None:
    config = replaced(SMALL, {"horizon_s": 60.0})
    fast, slow = (run("fcfs-cache", 1, 1.0, replaced(config, {"uplink_mbps": rate})) for rate in (None, 0.005))
    assert slow.goodput_tps < 0.8 * fast.goodput_tps
