"""Window controller: prices against brute force and a simulated BS, stability under noise, load ramp."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.optim.draft_window.controller import WindowConfig, WindowController
from testbed.optim.draft_window.cost import (
    FORGOTTEN,
    MAX_WINDOW,
    SPREAD,
    LinkCosts,
    Price,
    RoundCosts,
    committed,
    compared,
    cut_short,
    prices,
    until_next,
)
from tests.support.refusals import refuse

ALPHA, TOKENS, LARGEST = 0.8, 32, 6
COSTS = RoundCosts(draft_s=0.004, verify_base_s=0.03, verify_token_s=0.002, response_tokens=TOKENS)
LINK = LinkCosts(rtt_s=0.01, token_s=0.0002)
HINT_S = 4.0


# ---------------------------------------------------------------- a BS that knows none of the formulas

Choose = Callable[[int], int]
Learn = Callable[[int, int, int, float], object]


def accepted_runs(requests: int, seed: int) -> list[list[int]]:
    """Number of consecutive drafted tokens that would be accepted from each position of each request."""
    coins = np.random.default_rng(seed).random((requests, TOKENS)) < ALPHA
    runs = np.zeros((requests, TOKENS + 1), int)
    for at in reversed(range(TOKENS)):
        runs[:, at] = np.where(coins[:, at], runs[:, at + 1] + 1, 0)
    return runs.tolist()


def poisson(loads_tps: Sequence[float], each: int, seed: int) -> list[float]:
    """Arrival times of requests, a given number at each load."""
    random = np.random.default_rng(seed)
    gaps = np.concatenate([random.exponential(TOKENS / load, each) for load in loads_tps])
    return np.cumsum(gaps).tolist()


def simulate(
    arrivals: Sequence[float], runs: list[list[int]], choose: Choose, learn: Learn | None = None
) -> np.ndarray:
    """Seconds of each request. A pass includes all waiting rounds; with window 0 a request is in every pass."""
    position, window, end = [0] * len(arrivals), [0] * len(arrivals), np.zeros(len(arrivals))
    ready: list[tuple[float, int]] = []
    now = before = rate = 0.0
    coming = 0

    def draft(request: int, start: float) -> None:
        k = window[request] = choose(request)
        away = k * (COSTS.draft_s + LINK.token_s) + LINK.rtt_s if k else 0.0
        heapq.heappush(ready, (start + away, request))

    while ready or coming < len(arrivals):
        if not ready or (coming < len(arrivals) and arrivals[coming] <= max(now, ready[0][0])):
            draft(coming, arrivals[coming])
            coming += 1
            continue
        now = max(now, ready[0][0])
        batch = []
        while ready and ready[0][0] <= now:
            batch.append(heapq.heappop(ready)[1])
        now += COSTS.verify_base_s + COSTS.verify_token_s * sum(window[request] + 1 for request in batch)
        told, done = [], 0
        for request in batch:
            accepted = min(window[request], runs[request][position[request]])
            done -= position[request]
            position[request] = min(position[request] + accepted + 1, TOKENS)
            done += position[request]
            told.append((request, window[request], accepted))
        rate = rate * math.exp((before - now) / HINT_S) + done / HINT_S
        before = now
        for request, k, accepted in told:
            if learn:
                learn(request, k, accepted, rate / -math.expm1(-now / HINT_S))
            if position[request] < TOKENS:
                draft(request, now)
            else:
                end[request] = now
    return end - np.array(arrivals)


class Ues:
    """UEs that take the requests in turn, each with its own controller."""

    def __init__(self, count: int = 4) -> None:
        config = WindowConfig(max_window=LARGEST)
        self.controllers = [WindowController(COSTS, LINK, config=config) for _ in range(count)]

    def choose(self, request: int) -> int:
        return self.controllers[request % len(self.controllers)].window

    def learn(self, request: int, drafted: int, accepted: int, load_tps: float) -> None:
        self.controllers[request % len(self.controllers)].update(drafted, accepted, load_tps)


def test_on_a_ramp_the_controller_meets_the_best_window_at_every_load_and_beats_each_over_all() -> None:
    loads, each, seeds = (20.0, 120.0, 220.0, 300.0, 400.0), 400, (0, 1)
    ours, fixed = np.zeros(len(loads) * each), np.zeros((LARGEST + 1, len(loads) * each))
    for seed in seeds:
        arrivals, runs, ues = poisson(loads, each, seed + 10), accepted_runs(len(loads) * each, seed), Ues()
        ours += simulate(arrivals, runs, ues.choose, ues.learn)
        for k in range(LARGEST + 1):
            fixed[k] += simulate(arrivals, runs, lambda _, k=k: k)
        assert sum(each.switches for each in ues.controllers) < 25 * len(ues.controllers)
    settled = np.arange(each) >= each // 4
    mine = ours.reshape(len(loads), each)[:, settled].mean(axis=1)
    theirs = fixed.reshape(LARGEST + 1, len(loads), each)[:, :, settled].mean(axis=2)
    assert len(set(theirs.argmin(axis=0).tolist())) >= 3  # the best window changes along the ramp
    assert np.all(mine <= 1.02 * theirs.min(axis=0)), mine / theirs.min(axis=0)
    assert ours.mean() < 0.98 * fixed.mean(axis=1).min()


@pytest.mark.parametrize(("load", "window"), [(5.0, 0), (5.0, 6), (120.0, 0), (120.0, 2), (120.0, 4), (220.0, 3)])
def test_prices_are_what_a_simulated_base_station_takes(load: float, window: int) -> None:
    requests = 1500
    took = simulate(poisson([load], requests, 5), accepted_runs(requests, 6), lambda _: window)
    assert COSTS.price(window, ALPHA, load, LINK).time_s == pytest.approx(took.mean() / TOKENS, rel=0.05)


@pytest.mark.parametrize("age", [0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.7, FORGOTTEN])
def test_the_time_to_the_next_pass_is_that_of_passes_drawn_one_after_the_other(age: float) -> None:
    ends = np.random.default_rng(3).normal(1.0, SPREAD, (40_000, 16)).cumsum(axis=1)
    left = np.where(ends > age, ends - age, np.inf).min(axis=1)
    assert until_next(age) == pytest.approx(left.mean(), abs=0.01)


def test_a_base_station_has_a_steady_state_where_the_price_is_finite_and_only_there() -> None:
    for load, stable in ((260.0, True), (400.0, False)):
        price = COSTS.price(4, ALPHA, load, LINK)
        took = simulate(poisson([load], 3000, 1), accepted_runs(3000, 2), lambda _: 4)
        grows = took[2000:].mean() / took[:1000].mean()
        assert math.isfinite(price.time_s) is stable and (price.busy < 1) is stable
        assert grows < 1.3 if stable else grows > 2.5, grows


# ---------------------------------------------------------------- prices


@given(st.integers(0, 40), st.floats(0, 1))
def test_committed_tokens_are_the_sum_over_how_far_a_window_holds(window: int, alpha: float) -> None:
    assert committed(window, alpha) == pytest.approx(sum(alpha**j for j in range(window + 1)), rel=1e-9)


@pytest.mark.parametrize("alpha", [0.3, 0.8, 0.9999, 1.0])
@pytest.mark.parametrize("window", [0, 1, 4, 9])
def test_responses_that_end_within_a_round_match_simulated_ones(window: int, alpha: float) -> None:
    random = np.random.default_rng(3)
    lengths = random.integers(20, 61, 1500)
    kept = random.random((lengths.size, 60, window)) < alpha
    tokens = 1 + np.cumprod(kept, axis=2).sum(axis=2)
    rounds = 1 + (np.cumsum(tokens, axis=1) < lengths[:, None]).sum(axis=1)
    found = cut_short(window, alpha, float(lengths.mean()))
    assert found == pytest.approx(lengths.mean() / rounds.mean(), rel=0.015)


def test_without_load_a_round_is_its_parts_one_after_the_other() -> None:
    costs = RoundCosts(draft_s=0.004, verify_base_s=0.03, verify_token_s=0.002)
    price = costs.price(4, 1.0, 0.0, LINK)
    assert price.time_s * 5 == pytest.approx(4 * 0.004 + 4 * 0.0002 + 0.01 + 0.03 + 5 * 0.002)
    assert costs.price(0, 0.3, 0.0, LINK).time_s == pytest.approx(0.032)


def test_slow_links_need_larger_windows_and_load_smaller_ones() -> None:
    def best(load: float, link: LinkCosts) -> int:
        found = prices(COSTS, ALPHA, load, link, 16, 1)
        return 1 + found.index(min(found))

    by_rtt = [best(0.0, LinkCosts(rtt, 0.0)) for rtt in (0.0, 0.02, 0.1, 0.5)]
    assert by_rtt == sorted(by_rtt) and by_rtt[0] < by_rtt[-1]
    by_token = [best(0.0, LinkCosts(0.05, token)) for token in (0.0, 0.005, 0.02, 0.1)]
    assert by_token == sorted(by_token, reverse=True) and by_token[0] > by_token[-1]
    by_load = [best(load, LINK) for load in (0.0, 150.0, 250.0, 350.0, 450.0)]
    assert by_load == sorted(by_load, reverse=True) and by_load[0] > by_load[-1]


# ---------------------------------------------------------------- decisions


def feed(controller: WindowController, rounds: int, alpha: float, load: Callable[[], float], seed: int) -> list[int]:
    """Windows over rounds with random acceptance."""
    random, windows = np.random.default_rng(seed), []
    for _ in range(rounds):
        k = controller.window
        rejected = np.flatnonzero(random.random(k) >= alpha)
        windows.append(controller.update(k, int(rejected[0]) if rejected.size else k, load()))
    return windows


def brute_force(alpha: float, load: float, link: LinkCosts = LINK, largest: int = 16) -> list[float]:
    return [COSTS.price(k, alpha, load, link).time_s for k in range(largest + 1)]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([0.5, 0.7, 0.9, 1.0]), st.floats(0, 400), st.floats(0, 0.1), st.floats(0, 0.01))
def test_it_ends_within_two_hystereses_of_the_best_window(alpha: float, load: float, rtt: float, token: float) -> None:
    link = LinkCosts(rtt, token)
    controller = WindowController(COSTS, link, load, WindowConfig(alpha=alpha, prior_tokens=1e9, switching_s=0.01))
    for _ in range(300):
        controller.update(0, 0, load, link)
    costs = brute_force(alpha, load, link)
    assert costs[controller._steady] <= 1.02 * min(costs)


@pytest.mark.parametrize(("before", "after"), [(20.0, 300.0), (300.0, 20.0), (0.0, 450.0), (120.0, 240.0)])
def test_after_a_step_in_load_it_settles_within_the_stated_rounds(before: float, after: float) -> None:
    controller = WindowController(COSTS, LINK, config=WindowConfig(alpha=ALPHA, prior_tokens=1e9))
    feed(controller, 400, ALPHA, lambda: before, 1)
    stated = controller.settle_rounds
    assert stated <= 200
    windows = feed(controller, stated, ALPHA, lambda: after, 2)
    switches = controller.switches
    costs = brute_force(ALPHA, after)
    assert costs[controller._steady] <= 1.03 * min(costs)
    assert costs[windows[0]] > 1.03 * min(costs)  # the initial window is clearly worse
    feed(controller, 2000, ALPHA, lambda: after, 3)
    assert controller.switches - switches <= 1
    assert costs[controller._steady] <= 1.02 * min(costs)


@pytest.mark.parametrize("load", [20.0, 120.0, 180.0, 220.0])
def test_it_does_not_oscillate_under_noise(load: float) -> None:
    """With random acceptance and load reports 20 % off, unlike without hysteresis and switching cost."""
    rounds, changes = 3000, {}
    for name, config in (
        ("calm", WindowConfig()),
        ("bare", WindowConfig(hysteresis=0.0, switching_s=0.0)),
    ):
        changes[name] = 0
        for seed in range(4):
            noise = np.random.default_rng(seed)
            hint = partial(lambda random: load * float(np.clip(1 + 0.2 * random.standard_normal(), 0, 2)), noise)
            controller = WindowController(COSTS, LINK, config=config)
            feed(controller, 300, ALPHA, hint, seed)
            before = controller.switches
            feed(controller, rounds, ALPHA, hint, seed + 100)
            changes[name] += controller.switches - before
    assert changes["calm"] <= 4 * rounds / 1000, changes
    assert changes["bare"] >= 4 * max(changes["calm"], 1), changes


def test_prices_are_updated_at_intervals_and_estimates_every_round() -> None:
    """Less frequent updates use the same estimates and count the rounds since the last one."""
    asked: list[int] = []

    class Counted:
        def price(self, window: int, alpha: float, load: float, link: LinkCosts) -> Price:
            asked.append(window)
            return COSTS.price(window, alpha, load, link)

    controllers = [
        WindowController(Counted(), LINK, config=WindowConfig(every=every, max_window=8)) for every in (1, 5)
    ]
    at_start, due = len(asked), []
    for number in range(200):
        for controller in controllers:
            due.append(controller.due)
            controller.update(4, 4 if number % 3 else 2, 20.0)
    assert due[1::2] == [number % 5 == 4 for number in range(200)] and all(due[::2])
    assert len(asked) - at_start == 9 * (200 + 40)
    assert controllers[0].alpha == controllers[1].alpha and controllers[0].load == controllers[1].load
    often, seldom = (COSTS.price(c.window, c.alpha, c.load, c.link).time_s for c in controllers)
    assert often == pytest.approx(seldom, rel=2 * WindowConfig().hysteresis)


@pytest.mark.parametrize("least", [0, 1, 7])
def test_of_windows_up_to_24_all_are_compared_and_of_larger_ones_a_part(least: int) -> None:
    for largest in range(max(1, least), 25):
        assert compared(largest, least) == list(range(least, largest + 1))
    for largest in range(25, MAX_WINDOW + 1):
        found = compared(largest, least)
        assert found[: 25 - least] == list(range(least, 25)) and found[-1] == largest and len(found) <= 46
        assert all(1 <= after - before <= max(1, before // 8) for before, after in pairwise(found))


AROUND = st.floats(-1.0, 1.0).map(lambda power: 10.0**power)


@settings(max_examples=300, deadline=None)
@given(
    st.tuples(AROUND, AROUND, AROUND, AROUND), st.floats(-3.5, 0.0), st.floats(0.0, 400.0),
    st.sampled_from([0.0, 8.0, 64.0, 1000.0]), st.integers(25, MAX_WINDOW),
)  # fmt: skip
def test_of_large_windows_the_choice_is_within_the_hysteresis_of_the_cheapest(
    factors: tuple[float, float, float, float], rest: float, load: float, response: float, largest: int
) -> None:
    draft, base, token, rtt = factors
    alpha, link = 1 - 10.0**rest, LinkCosts(0.03 * rtt, 0.0)
    costs = RoundCosts(
        draft_s=0.001 * draft, verify_base_s=0.02 * base, verify_token_s=0.0002 * token, response_tokens=response
    )
    controller = WindowController(costs, link, load, WindowConfig(max_window=largest, alpha=alpha, prior_tokens=1e9))
    best = min(prices(costs, controller.alpha, load, link, largest))
    chosen = costs.price(controller.window, controller.alpha, load, link)
    if math.isfinite(best.time_s):
        assert chosen.time_s <= (1 + WindowConfig().hysteresis) * best.time_s
    else:
        assert chosen.busy <= (1 + WindowConfig().hysteresis) * best.busy


def test_it_turns_off_where_speculation_loses_and_on_again_when_it_pays() -> None:
    controller = WindowController(COSTS, LINK)
    feed(controller, 400, ALPHA, lambda: 20.0, 1)
    assert controller.window >= 3
    feed(controller, 400, ALPHA, lambda: 450.0, 2)
    assert controller._steady == 0
    feed(controller, 400, ALPHA, lambda: 20.0, 3)
    assert controller.window >= 3


def test_it_notices_that_drafts_became_good_again_although_it_was_off() -> None:
    controller = WindowController(COSTS, LINK)
    windows = feed(controller, 4000, 0.05, lambda: 20.0, 1)
    assert controller._steady == 0
    settled = windows[500:]
    probes = sum(k > 0 for k in settled)
    assert 0 < probes < 0.05 * len(settled)
    costs = brute_force(0.05, 20.0)
    spent = sum(costs[k] * committed(k, 0.05) for k in settled) / sum(committed(k, 0.05) for k in settled)
    assert spent <= 1.01 * costs[0]
    feed(controller, 12000, 0.95, lambda: 20.0, 2)
    assert controller._steady >= 4


def test_it_does_not_probe_where_even_perfect_drafts_would_lose() -> None:
    controller = WindowController(COSTS, LinkCosts(rtt_s=2.0))
    assert set(feed(controller, 5000, 0.9, lambda: 20.0, 1)) == {0}


def test_a_least_window_of_one_never_turns_off() -> None:
    controller = WindowController(COSTS, LinkCosts(rtt_s=2.0), config=WindowConfig(least_window=1, max_window=8))
    assert set(feed(controller, 500, 0.9, lambda: 450.0, 1)) <= set(range(1, 9))


def test_at_saturation_it_takes_the_window_of_least_load_at_the_next_update() -> None:
    controller = WindowController(COSTS, LINK, config=WindowConfig(load_memory=1))
    feed(controller, 100, ALPHA, lambda: 20.0, 1)
    assert [controller.update(0, 0, 5000.0) for _ in range(controller.config.every)][-1] == 0


def test_estimates_follow_what_happens() -> None:
    controller = WindowController(COSTS, LINK, config=WindowConfig(least_window=1))
    feed(controller, 1000, 0.6, lambda: 77.0, 1)
    assert controller.alpha == pytest.approx(0.6, abs=0.08) and controller.load == pytest.approx(77.0)
    for _ in range(400):
        controller.update(0, 0, None, LinkCosts(0.2, 0.003))
    assert controller.link == pytest.approx((0.2, 0.003), rel=1e-3)
    assert controller.load == pytest.approx(77.0)  # without a load report nothing changes


def test_a_response_starts_with_the_given_load_and_new_prices() -> None:
    controller = WindowController(COSTS, LINK, load=10.0)
    controller.update(2, 2, 10.0)
    assert not controller.due
    controller.resume(300.0)
    assert controller.load == 300.0 and controller.due
    for load in (-1.0, math.nan, math.inf):
        refuse(lambda load=load: controller.resume(load), BadInput, "load")
    assert controller.load == 300.0


def test_the_prior_of_other_ues_counts_more_while_nothing_is_drafted() -> None:
    controller = WindowController(COSTS, LINK, config=WindowConfig(memory=50, prior_tokens=0))
    controller.believe(0.9, 30.0)
    assert controller.alpha == pytest.approx(0.9)
    controller.update(4, 0)
    assert controller.alpha == pytest.approx(27 / 31)
    for _ in range(400):
        controller.update(4, 0)
    assert controller.alpha < 0.5
    for _ in range(200):
        controller.update(0, 0)
    assert controller.alpha == pytest.approx(0.9, abs=0.03)
    for alpha, tokens in ((1.1, 1.0), (0.5, -1.0), (0.5, math.inf)):
        with pytest.raises(BadInput):
            controller.believe(alpha, tokens)


def test_drafts_that_a_stopping_rule_cut_short_count_as_they_were() -> None:
    controller = WindowController(COSTS, LINK, config=WindowConfig(least_window=1, prior_tokens=0.0))
    for _ in range(2000):
        controller.update(1, 1)
        controller.update(1, 0)
    assert controller.alpha == pytest.approx(0.5, abs=0.01)


def test_the_same_updates_give_the_same_windows() -> None:
    runs = [feed(WindowController(COSTS, LINK), 500, 0.7, lambda: 150.0, 4) for _ in range(2)]
    assert runs[0] == runs[1]


def test_prices_compare_by_time_and_at_saturation_by_load() -> None:
    assert Price(0.1, 0.9) < Price(0.2, 0.1) < Price(math.inf, 1.1) < Price(math.inf, 1.2)


# ---------------------------------------------------------------- bad input

BAD_CONFIGS = [
    ({"max_window": 0}, "1..256"),
    ({"max_window": 4, "least_window": 5}, "0..4"),
    ({"memory": 0.5}, "at least 1"),
    ({"memory": math.nan}, "at least 1"),
    ({"hysteresis": -0.1}, "[0, 1]"),
    ({"alpha": 1.5}, "[0, 1]"),
    ({"switching_s": -1.0}, "at least 0"),
    ({"prior_tokens": math.inf}, "at least 0"),
]


@pytest.mark.parametrize(("fields", "said"), BAD_CONFIGS)
def test_configurations_out_of_range_are_refused(fields: dict[str, float], said: str) -> None:
    refuse(
        lambda: WindowConfig(**fields),
        BadInput,
        next(iter(fields)).split("_")[0] if "least" not in str(fields) else "",
        said,
    )


@settings(deadline=None)
@given(st.integers(-3, 9), st.integers(-3, 9), st.one_of(st.none(), st.floats()), st.one_of(st.none(), st.floats()))
def test_invalid_updates_are_refused_and_change_nothing(
    drafted: int, accepted: int, load: float | None, rtt: float | None
) -> None:
    controller = WindowController(COSTS, LINK, 50.0)
    before = (controller.alpha, controller.load, controller.link, controller.window)
    good = all(value is None or (math.isfinite(value) and value >= 0) for value in (load, rtt))
    link = None if rtt is None else LinkCosts(rtt)
    if good and 0 <= accepted <= drafted:
        assert 0 <= controller.update(drafted, accepted, load, link) <= 16
        return
    refuse(lambda: controller.update(drafted, accepted, load, link), BadInput)
    assert before == (controller.alpha, controller.load, controller.link, controller.window)


@pytest.mark.parametrize("field", ["draft_s", "verify_base_s", "verify_token_s", "stream_s", "response_tokens"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_costs_out_of_range_are_refused(field: str, value: float) -> None:
    refuse(lambda: RoundCosts(**{field: value}), BadInput, field)


def test_a_pass_that_takes_no_time_is_refused() -> None:
    refuse(lambda: RoundCosts(verify_base_s=0.0, verify_token_s=0.0), BadInput, "verify_base_s")
    refuse(lambda: prices(COSTS, 1.2, 0.0, LINK, 4), BadInput, "alpha")
    refuse(lambda: prices(COSTS, 0.5, -1.0, LINK, 4), BadInput, "load")
