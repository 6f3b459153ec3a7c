"""Batches that keep promises: by hand, by properties of any queue, against brute force."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import Pending
from testbed.bs.scheduling.slo import Slo
from testbed.bs.scheduling.slo_batch import TimedRequest
from testbed.bs.scheduling.slo_rules import COMMITTED, PRINTED, Rules, budget_s, geometric, linear
from testbed.errors import BadInput
from testbed.experiments.inputs.profile import InteractionVerify, PassWork
from testbed.optim.pass_time import Coefficients
from tests.support.devices import A100, CAP
from tests.support.printed import Printed

ORACLE = InteractionVerify(a_s=A100.a, b_compute_s=A100.b_compute, b_read_s=A100.b_read, c_s=A100.c)
NOW_S = 100.0
TINY_S = 1e-9
"""Sums in another order differ by less."""


def waiting(
    name: str = "x", arrived_s: float = NOW_S, prefix: int = 300, draft: int = 3, computed: int = 299, **more: Any
) -> Pending:
    request = VerifyRequest(name, np.zeros(prefix, np.int32), np.zeros(draft, np.int32))
    return Pending(request, arrived_s, computed, **more)


def took_s(batch: Sequence[Pending]) -> float:
    """T̂ by another hand."""
    return ORACLE.pass_s([PassWork(len(p.request.draft), p.new_tokens, p.cached_tokens) for p in batch])


def names(batch: Sequence[Pending]) -> list[str]:
    return [item.request.session for item in batch]


def entries(plan: Slo, queue: Sequence[Pending], now_s: float = NOW_S) -> dict[str, TimedRequest]:
    queues = plan.queues(queue, now_s)
    return {entry.session: entry for entry in (*queues.urgent, *queues.utility)}


# ---------------------------------------------------------------- tokens, budgets, deadlines


@pytest.mark.parametrize(
    ("rule", "acceptance", "drafted", "expected"),
    [
        ("geometric", 0.5, 2, 1.75),  # 1/2 · 1 + 1/4 · 2 + 1/4 · 3
        ("geometric", 0.758, 5, 3.348),  # what the errata say a window of 5 commits
        ("geometric", 1.0, 4, 5.0),
        ("geometric", 0.0, 4, 1.0),
        ("geometric", 0.9, 0, 1.0),  # the verifier's own
        ("linear", 0.5, 4, 3.0),
        ("linear", 0.66, 0, 1.0),
    ],
)
def test_expected_tokens_by_hand(rule: str, acceptance: float, drafted: int, expected: float) -> None:
    assert COMMITTED[rule](acceptance, drafted) == pytest.approx(expected, abs=1e-3)


def test_expected_tokens_are_those_of_coins() -> None:
    rng = np.random.default_rng(4)
    coins = rng.random((200_000, 6)) < 0.7
    first = np.where(coins.all(axis=1), 6, coins.argmin(axis=1))
    assert geometric(0.7, 6) == pytest.approx(first.mean() + 1, abs=0.02)
    assert linear(first.mean() / 6, 6) == pytest.approx(first.mean() + 1, abs=1e-9)


def test_budgets_by_hand() -> None:
    assert budget_s(2.0, 8.0, 0.06, 0.04) == pytest.approx(0.150)
    assert budget_s(1.0, 8.0, 0.1, 0.04) == 0.0  # late on arrival, not before it
    assert budget_s(1.0, 8.0, -5.0, -5.0) == 0.125  # nobody gains by times that cannot be
    assert budget_s(2.0, 8.0, 0.06, 0.04, ahead_s=0.2, spend=0.5) == pytest.approx(0.250)
    assert budget_s(2.0, 8.0, 0.06, 0.04, ahead_s=-0.1, spend=0.5) == pytest.approx(0.050)


def test_deadlines_latest_starts_and_utilities_by_hand() -> None:
    plan = Slo(coefficients=Coefficients(a=0.001, b_compute=0.0, b_read=0.0, c=0.010), guard_s=0.0, acceptance=0.5)
    item = waiting(draft=2, prefix=300, computed=299, speed_tps=5.0, draft_s=0.04, network_s=0.06)
    (entry,) = plan.queues([item], NOW_S).utility
    assert entry.deadline_s == pytest.approx(NOW_S + 1.75 / 5 - 0.1)  # 1.75 tokens
    assert entry.lst_s == pytest.approx(entry.deadline_s - 0.013)  # three new tokens, alone
    assert entry.utility == pytest.approx(1.75 / 0.003)  # by what it adds
    assert not entry.late and entry.kv == 302
    sure = waiting(draft=2, computed=299, speed_tps=5.0, draft_s=0.04, network_s=0.06, acceptance=1.0)
    assert entries(plan, [sure])["x"].deadline_s == pytest.approx(NOW_S + 3 / 5 - 0.1)
    assert entries(plan, [waiting()])["x"].deadline_s == NOW_S + plan.patience_s


def test_a_request_turns_critical_at_its_latest_start_less_the_guard_and_late_after_it() -> None:
    item = waiting(speed_tps=4.0)
    for guard_s in (0.0, 0.03):
        plan = Slo(coefficients=A100, guard_s=guard_s)
        due_s = entries(plan, [item])["x"].deadline_s
        start_s = due_s - took_s([item])
        assert not plan.queues([item], start_s - guard_s - 1e-6).urgent
        (critical,) = plan.queues([item], start_s - guard_s + 1e-6).urgent
        assert critical.late == (guard_s == 0)
        assert entries(plan, [item], start_s + 1e-6)["x"].late


def test_the_guard_covers_passes_of_what_waits() -> None:
    queue = [waiting(str(i), speed_tps=2.0) for i in range(40)]
    plan = Slo(coefficients=A100, max_requests=13)
    start_s = entries(plan, queue)["7"].lst_s - 3 * took_s(queue[:13])
    assert not plan.queues(queue, start_s - 1e-6).urgent
    assert len(plan.queues(queue, start_s + 1e-6).urgent) == 40


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_requests": 0}, "1 request and 1 token or more"), ({"max_tokens": 0}, "1 request and 1 token or more"),
        ({"kv_tokens": 0}, "room for 1 token or more"), ({"committed": "magic"}, "known: geometric, linear"),
        ({"acceptance": 1.1}, "acceptance must lie in"), ({"spend": -0.1}, "spend must lie in"),
        ({"guard_s": -1.0}, "guard time is 0 s or more"), ({"patience_s": math.inf}, "patience is 0 s or more"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Slo(coefficients=A100, **change)


# ---------------------------------------------------------------- any queue

TIMES = st.sampled_from([0.0, 0.02, 0.05, 0.1, 0.3])
ENTRIES = st.tuples(
    st.sampled_from([-2.0, -0.5, -0.2, -0.1, -0.02, 0.0]),
    st.integers(1, 1200),
    st.integers(0, 12),
    st.sampled_from([0, 0.5, 1]),
    st.sampled_from([None, 2.0, 4.0, 6.0, 8.0]),
    TIMES,
    TIMES,
    st.sampled_from([-1.0, 0.0, 0.0, 0.5]),
)
QUEUES = st.lists(ENTRIES, min_size=1, max_size=24).map(
    lambda rows: [
        waiting(
            f"{i:02}", NOW_S + at, prefix, k, int(share * (prefix - 1)),
            speed_tps=speed, draft_s=draft_s, network_s=network_s, ahead_s=ahead_s,
        )
        for i, (at, prefix, k, share, speed, draft_s, network_s, ahead_s) in enumerate(rows)
    ]
)  # fmt: skip
PLANS = st.builds(
    Slo,
    coefficients=st.just(A100),
    max_requests=st.integers(1, 16),
    max_tokens=st.sampled_from([40, 900, 8192]),
    kv_tokens=st.sampled_from([None, 500, 4000]),
    guard_s=st.sampled_from([None, 0.0, 0.02, 0.3]),
)


@given(queue=QUEUES, plan=PLANS)
def test_a_batch_is_never_empty_holds_each_once_and_keeps_its_bounds(queue: list[Pending], plan: Slo) -> None:
    batch = plan.plan(queue, NOW_S)
    assert 1 <= len(batch) <= plan.max_requests
    assert len(set(names(batch))) == len(batch) and all(any(item is q for q in queue) for item in batch)
    if len(batch) > 1:
        assert sum(item.new_tokens for item in batch) <= plan.max_tokens
        kept = sum(len(item.request.prefix) + len(item.request.draft) for item in batch)
        assert plan.kv_tokens is None or kept <= plan.kv_tokens


@given(queue=QUEUES, plan=PLANS)
def test_who_could_be_met_and_goes_is_met(queue: list[Pending], plan: Slo) -> None:
    known, batch = entries(plan, queue), plan.plan(queue, NOW_S)
    end_s = NOW_S + took_s(batch)
    for item in batch:
        entry = known[item.request.session]
        could = NOW_S + took_s([item]) <= entry.deadline_s - TINY_S
        assert not could or end_s <= entry.deadline_s + TINY_S


@given(queue=QUEUES, plan=PLANS)
def test_nobody_is_left_who_could_join(queue: list[Pending], plan: Slo) -> None:
    known, batch = entries(plan, queue), plan.plan(queue, NOW_S)
    left = [item for item in queue if item not in batch]
    if len(batch) == plan.max_requests:
        left = []
    for item in left:
        grown = [*batch, item]
        kept = sum(len(p.request.prefix) + len(p.request.draft) for p in grown)
        bound = sum(p.new_tokens for p in grown) > plan.max_tokens or kept > (plan.kv_tokens or math.inf)
        due_s = [known[p.request.session].deadline_s for p in grown if not known[p.request.session].late]
        assert bound or NOW_S + took_s(grown) > min(due_s, default=math.inf) - TINY_S


@given(queue=QUEUES, plan=PLANS)
def test_a_filled_pass_leaves_nobody_for_whom_there_is_room(queue: list[Pending], plan: Slo) -> None:
    plan = replace(plan, protect=False)
    batch = plan.plan(queue, NOW_S)
    queues = plan.queues(queue, NOW_S)
    line = [entry.pending for entry in (*queues.urgent, *queues.utility)]
    taken = set(names(batch))
    assert names(batch) == [name for name in names(line) if name in taken]
    for item in line if len(batch) < plan.max_requests else []:
        grown = [*batch, item]
        kept = sum(len(p.request.prefix) + len(p.request.draft) for p in grown)
        bound = sum(p.new_tokens for p in grown) > plan.max_tokens or kept > (plan.kv_tokens or math.inf)
        assert bound or item.request.session in taken


@given(queue=QUEUES, plan=PLANS, seed=st.integers(0, 99))
def test_the_order_of_the_queue_changes_nothing(queue: list[Pending], plan: Slo, seed: int) -> None:
    mixed = random.Random(seed).sample(queue, len(queue))
    assert names(plan.plan(mixed, NOW_S)) == names(plan.plan(queue, NOW_S))
    assert names(plan.plan(tuple(queue), NOW_S)) == names(plan.plan(queue, NOW_S))


def test_ties_go_by_arrival_then_by_name() -> None:
    queue = [waiting(name, speed_tps=4.0) for name in "dbca"]
    for now_s in (NOW_S, NOW_S + 60):  # by utility; late
        assert names(Slo(coefficients=A100, max_requests=3, guard_s=0.0).plan(queue, now_s)) == ["a", "b", "c"]


@given(queue=QUEUES, plan=PLANS)
def test_critical_requests_go_by_deadline_before_all_others(queue: list[Pending], plan: Slo) -> None:
    queues, batch = plan.queues(queue, NOW_S), names(plan.plan(queue, NOW_S))
    urgent = [entry.session for entry in queues.urgent]
    assert [entry.deadline_s for entry in queues.urgent] == sorted(entry.deadline_s for entry in queues.urgent)
    assert [-entry.utility for entry in queues.utility] == sorted(-entry.utility for entry in queues.utility)
    line = urgent + [entry.session for entry in queues.utility]
    assert sorted(line) == sorted(names(queue))
    assert batch == sorted(batch, key=line.index) and batch[0] == line[0]


@given(queue=QUEUES, size=st.integers(1, 8))
def test_late_requests_keep_their_place_and_block_nobody(queue: list[Pending], size: int) -> None:
    plan = Slo(coefficients=A100, max_requests=size, max_tokens=10**6, guard_s=0.0)
    now_s = NOW_S + 30  # all are late
    by_deadline = sorted(
        names(queue), key=lambda name: (entries(plan, queue, now_s)[name].deadline_s, *_tie(name, queue))
    )
    assert names(plan.plan(queue, now_s)) == by_deadline[:size]


def _tie(name: str, queue: Sequence[Pending]) -> tuple[float, str]:
    return next(p.arrived_s for p in queue if p.request.session == name), name


def test_a_late_request_does_not_stop_the_others_as_it_does_in_the_paper() -> None:
    queue = [waiting("late", NOW_S - 5, speed_tps=8.0), waiting("fresh", speed_tps=2.0)]
    assert Printed(A100, CAP, 0.66, 0.0).plan(queue, NOW_S) == []
    assert names(Slo(coefficients=A100).plan(queue, NOW_S)) == ["late", "fresh"]


@given(
    queue=QUEUES, size=st.integers(1, 16), guard_s=st.sampled_from([0.0, 0.02, 0.3]), alpha=st.sampled_from([0.5, 0.66])
)
def test_the_rules_as_printed_give_the_printed_algorithms_batch(
    queue: list[Pending], size: int, guard_s: float, alpha: float
) -> None:
    """Against another implementation, line by line; ties by deadline, arrival and name."""
    plan = Slo(
        coefficients=A100, rules=PRINTED, committed="linear", guard_s=guard_s, acceptance=alpha, max_requests=size,
        max_tokens=10**6,
    )  # fmt: skip
    queue = [replace(item, ahead_s=0.0, speed_tps=item.speed_tps or 3.0) for item in queue]
    known = entries(plan, queue)
    queue.sort(key=lambda item: (known[item.request.session].deadline_s, item.arrived_s, item.request.session))
    assert names(plan.plan(queue, NOW_S)) == names(Printed(A100, size, alpha, guard_s).plan(queue, NOW_S))


@pytest.mark.parametrize(
    ("rules", "batch"),
    [
        (Rules(), ["late", "tight", "small"]), (Rules(late="last"), ["tight", "small", "late"]),
        (Rules(late="stop"), ["tight", "small"]), (Rules(late="stop", filling=False), []),
        (Rules(filling=False), ["late", "tight"]), (Rules(late="last", filling=False), ["tight"]),
    ],
)  # fmt: skip
def test_each_repair_is_a_switch(rules: Rules, batch: list[str]) -> None:
    """`prompt` is critical, due after `tight`, and fits no pass with it; `small` is not critical."""
    late = waiting("late", NOW_S - 5, speed_tps=8.0)
    tight = waiting("tight", NOW_S - 0.22, speed_tps=8.0, acceptance=1.0, draft_s=0.15, network_s=0.1)
    prompt = waiting("prompt", NOW_S - 1.24, prefix=2000, computed=0, speed_tps=2.0)
    small = waiting("small", NOW_S, draft=1, speed_tps=2.0)
    found = names(Slo(coefficients=A100, guard_s=0.03, rules=rules).plan([prompt, small, tight, late], NOW_S))
    assert found == batch


def test_the_verifiers_own_token_is_a_switch() -> None:
    item = waiting(draft=4, speed_tps=4.0, acceptance=0.9, accepted_share=0.5)
    for committed, tokens in (("linear", 3.0), ("geometric", geometric(0.9, 4))):
        assert Slo(coefficients=A100, committed=committed).expected(item) == pytest.approx(tokens)
        without = Slo(coefficients=A100, committed=committed, rules=Rules(own_token=False))
        assert without.expected(item) == pytest.approx(tokens - 1)


def test_what_endangers_a_deadline_waits_and_what_does_not_joins() -> None:
    tight = waiting("tight", NOW_S - 0.23, speed_tps=8.0, acceptance=1.0, draft_s=0.15, network_s=0.1)
    prompt = waiting("prompt", NOW_S, prefix=2000, computed=0, speed_tps=2.0)
    small = waiting("small", NOW_S, draft=1, speed_tps=2.0)
    plan = Slo(coefficients=A100, guard_s=0.03)
    assert took_s([tight]) < entries(plan, [tight])["tight"].deadline_s - NOW_S < took_s([tight, prompt])
    assert names(plan.plan([prompt, small, tight], NOW_S)) == ["tight", "small"]
    assert names(replace(plan, protect=False).plan([prompt, small, tight], NOW_S)) == ["tight", "small", "prompt"]


def test_other_coefficients_give_another_plan() -> None:
    plan = Slo(coefficients=A100, max_requests=7)
    slower = Coefficients(*(2 * value for value in A100.values))
    assert plan.learn(slower, None) == Slo(coefficients=slower, max_requests=7)


@given(queue=QUEUES, plan=PLANS, worth=st.sampled_from([0.25, 1.0, 8.0]), ues=st.integers(1, 6))
def test_equal_worths_give_algorithm_1s_batch(queue: list[Pending], plan: Slo, worth: float, ues: int) -> None:
    pool = [replace(item, peer=bytes([i % ues])) for i, item in enumerate(queue)]
    weighed = replace(plan, worths={bytes([ue]): worth for ue in range(ues)})
    assert names(weighed.plan(pool, NOW_S)) == names(plan.plan(queue, NOW_S))


def test_a_doubled_worth_changes_the_batch() -> None:
    """With α = 1 and no time for cached tokens, windows of 1 and 7 tokens have utilities of 2 / 2 ms and 8 / 8 ms;
    one of 3 whose prefix lacks two tokens has 4 / 6 ms, twice of which is more.
    """
    times = Coefficients(a=0.001, b_compute=0.0, b_read=0.0, c=0.010)
    plan = Slo(coefficients=times, acceptance=1.0, guard_s=0.0, max_tokens=10)
    pool = [
        waiting("one", draft=1, peer=b"one"), waiting("seven", NOW_S + 1e-3, draft=7, peer=b"seven"),
        waiting("cold", draft=3, computed=297, peer=b"cold"),
    ]  # fmt: skip
    utilities = {name: entry.utility for name, entry in entries(plan, pool).items()}
    assert utilities == pytest.approx({"one": 1000, "seven": 1000, "cold": 4000 / 6})
    assert names(plan.plan(pool, NOW_S)) == ["one", "seven"]  # 10 tokens
    worths: dict[bytes, float] = {}
    live = replace(plan, worths=worths).learn(None, None)
    assert names(live.plan(pool, NOW_S)) == ["one", "seven"]
    worths[b"cold"] = 2.0
    assert entries(live, pool)["cold"].utility == pytest.approx(8000 / 6)
    assert names(live.plan(pool, NOW_S)) == ["cold", "one"]


def test_a_worth_moves_no_deadline() -> None:
    tight, other = waiting("tight", NOW_S - 0.4, speed_tps=8.0, peer=b"tight"), waiting("other", peer=b"other")
    plan = Slo(coefficients=A100, max_requests=1, worths={b"tight": 1e-3, b"other": 1e3})
    assert names(plan.plan([other, tight], NOW_S)) == ["tight"]


@pytest.mark.parametrize("kind", ["unpromised", "large", "slow"])
def test_nobody_starves_behind_a_stream_of_the_urgent(kind: str) -> None:
    victims = {
        "unpromised": waiting("victim", 0.0),
        "large": waiting("victim", 0.0, prefix=9000, computed=0, speed_tps=2.0),  # more than a pass takes
        "slow": waiting("victim", 0.0, draft=12, speed_tps=0.5, acceptance=1.0),
    }
    plan = Slo(coefficients=A100, max_requests=4, kv_tokens=8000)
    queue, now_s = [victims[kind]], 0.0
    due_s = entries(plan, queue, 0.0)["victim"].deadline_s
    for epoch in itertools.count():
        # Four come while four go, always, each late on arrival and worth more than the victim.
        queue += [waiting(f"{epoch}/{i}", now_s, draft=8, speed_tps=8.0, acceptance=1.0, draft_s=9.0) for i in range(4)]
        batch = plan.plan(queue, now_s)
        now_s += took_s(batch)
        queue = [item for item in queue if item not in batch]
        if victims[kind] in batch:
            break
        assert now_s < due_s + 1.0
    assert epoch > 10 and len(queue) <= 8


ARRIVALS = st.lists(
    st.tuples(st.floats(0, 0.3), st.integers(0, 64), st.sampled_from([None, 2.0, 8.0]), st.floats(0, 3)),
    min_size=1,
    max_size=60,
)


@given(arrivals=ARRIVALS, spare_s=st.sampled_from([math.inf, 0.0, 0.05]), size=st.integers(1, 8))
def test_a_request_waits_for_those_with_earlier_deadlines_and_one_pass(
    arrivals: list[tuple[float, int, float | None, float]], spare_s: float, size: int
) -> None:
    """Starvation: whatever arrives, a request is taken before the time that one pass each for the requests with earlier
    deadlines, its own and two more would take, counted without the scheduler.
    """
    plan, at_s, due_s = Slo(coefficients=A100, max_requests=size, spare_s=spare_s), 0.0, dict[str, float]()
    queue, coming, took = list[Pending](), list[Pending](), dict[str, tuple[float, float]]()
    for i, (gap_s, draft, speed, turn_s) in enumerate(arrivals):
        at_s += gap_s
        coming.append(waiting(str(i), at_s, draft=draft, speed_tps=speed, turn_s=0.0 if speed else turn_s))
        due_s[str(i)] = at_s + (max(1.0, turn_s) if speed is None else geometric(0.8, draft) / speed)
    now_s = longest_s = 0.0
    while queue or coming:
        now_s = max(now_s, coming[0].arrived_s) if not queue else now_s
        while coming and coming[0].arrived_s <= now_s:
            queue.append(coming.pop(0))
        batch = plan.plan(queue, now_s)
        assert batch
        took |= {name: (now_s, took_s(batch)) for name in names(batch)}
        queue = [item for item in queue if item not in batch]
        now_s += took_s(batch)
        longest_s = max(longest_s, took_s(batch))
    for name, (start_s, _) in took.items():
        before = sum(due <= due_s[name] for due in due_s.values())
        assert start_s <= due_s[name] + (before + 2) * longest_s


def test_requests_without_a_guarantee_make_no_pass_longer_than_may_be() -> None:
    free = [waiting(f"free-{i}", NOW_S - 5, draft=60) for i in range(30)]
    given = [waiting(f"given-{i}", NOW_S, speed_tps=2.0) for i in range(3)]
    batch = Slo(coefficients=A100).learn(None, 0.12).plan([*free, *given], NOW_S)
    joined = [item for item in batch if item in free]
    assert took_s(joined) <= 0.04 < took_s([*joined, free[-1]]) and names(batch)[0] == "free-0"
    assert set(names(given)) <= set(names(batch))
    slow = [waiting(f"slow-{i}", NOW_S, draft=60, speed_tps=1e-3) for i in range(30)]  # due in an hour
    assert took_s(Slo(coefficients=A100).learn(None, 0.12).plan([*slow, *given], NOW_S)) <= 0.04 + took_s(given)
    least = Slo(coefficients=A100).learn(None, -1.0).plan(free, NOW_S)  # no time at all for a guaranteed round
    assert len(least) > 1 and took_s(least) <= 2 * A100.c
    assert len(Slo(coefficients=A100).learn(None, None).plan([*free, *given], NOW_S)) == 33


# ---------------------------------------------------------------- against brute force


def possible(queue: Sequence[Pending], plan: Slo) -> list[tuple[int, float]]:
    """(critical requests, expected tokens) of every batch under eqs. 14 and 15; deadlines that are lost bound none."""
    queues, found = plan.queues(queue, NOW_S), []
    critical = {entry.session for entry in queues.urgent}
    known = {entry.session: entry for entry in (*queues.urgent, *queues.utility)}
    for size in range(1, min(len(queue), plan.max_requests) + 1):
        for chosen in itertools.combinations(queue, size):
            one = [known[name] for name in names(chosen)]
            due_s = min((e.deadline_s for e in one if not e.late), default=math.inf)
            kept = sum(len(p.request.prefix) + len(p.request.draft) for p in chosen)
            if NOW_S + took_s(chosen) <= due_s + TINY_S and kept <= (plan.kv_tokens or math.inf):
                found.append((sum(name in critical for name in names(chosen)), tokens(chosen, plan)))
    return found


def tokens(batch: Sequence[Pending], plan: Slo) -> float:
    return sum(geometric(plan.acceptance, len(p.request.draft)) for p in batch)


def small_queue(rng: np.random.Generator) -> list[Pending]:
    """Two to eight requests of mixed classes, some of them new, some late, most with time to spare."""
    queue = []
    for i in range(int(rng.integers(2, 9))):
        prefix = int(rng.integers(50, 600))
        queue.append(
            waiting(
                str(i), NOW_S - float(rng.uniform(0, 0.3)), prefix, int(rng.integers(0, 6)),
                prefix - 1 if rng.random() < 0.85 else 0, speed_tps=float(rng.choice([2, 4, 6, 8])),
                draft_s=float(rng.uniform(0.02, 0.1)), network_s=float(rng.uniform(0.02, 0.06)),
            )
        )  # fmt: skip
    return queue


@pytest.mark.parametrize(("size", "kv_tokens"), [(13, None), (4, None), (13, 1500)])
def test_small_batches_come_close_to_the_best_there_are(size: int, kv_tokens: int | None) -> None:
    # The best: as many critical requests as go at all, since they override, and then the most tokens.
    rng = np.random.default_rng(11)
    plan = Slo(coefficients=A100, max_requests=size, kv_tokens=kv_tokens, guard_s=0.02)
    critical, worth = [], []
    for _ in range(200):
        queue = small_queue(rng)
        batch = plan.plan(queue, NOW_S)
        urgent = {entry.session for entry in plan.queues(queue, NOW_S).urgent}
        served = sum(name in urgent for name in names(batch))
        choices = possible(queue, plan)
        most = max(count for count, _ in choices)
        critical.append(served / most if most else 1.0)
        worth.append(tokens(batch, plan) / max(value for count, value in choices if count >= served))
    assert max(worth) <= 1 + 1e-9 and max(critical) == 1
    assert np.mean(worth) >= 0.95 and np.mean(critical) >= 0.95


def test_where_all_have_room_the_tokens_come_close_to_the_best_of_any_batch() -> None:
    rng = np.random.default_rng(12)
    plan, shares = Slo(coefficients=A100, guard_s=0.0), []
    for _ in range(200):
        queue = small_queue(rng)
        shares.append(tokens(plan.plan(queue, NOW_S), plan) / max(value for _, value in possible(queue, plan)))
    assert max(shares) <= 1 + 1e-9
    assert np.mean(shares) >= 0.95


# ---------------------------------------------------------------- shares of UEs


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 8), st.integers(1, 3000), st.integers(0, 2999), st.integers(0, 40)),
        min_size=1, max_size=16,
    ),
    own=st.sampled_from([16, 100, 512]),
    cuts=st.booleans(),
)  # fmt: skip
def test_rounds_of_several_ues_without_a_guarantee_are_served_to_the_end(
    rows: list[tuple[int, int, int, int, int]], own: int, cuts: bool
) -> None:
    """Prompts on whatever was computed of them, in pieces; of a UE no more than its share after its first round."""
    queue = [
        waiting(str(i), float(at), prefix, draft, min(computed, prefix), ue=b"%d" % ue)
        for i, (ue, at, prefix, computed, draft) in enumerate(rows)
    ]
    plan: Slo = Slo(coefficients=A100, own_tokens=own, cuts=cuts).learn(None, None)
    for now_s in range(20, 20_000):
        if not queue:
            return
        batch, many = plan.plan(queue, float(now_s)), len({item.ue for item in queue}) > 1
        assert batch
        for ue in {item.ue for item in batch} if many else ():
            first, *others = [item for item in batch if item.ue == ue]
            if others:
                assert first.weight + sum(item.weight for item in others) <= max(own, 64) + first.cached_tokens // 32
        plan = plan.after(queue, batch)
        done = {item.request.session: len(item.request.prefix) for item in batch}
        whole = {item.request.session for item in batch if any(item.request is one.request for one in queue)}
        queue = [
            replace(item, computed=max(item.computed, done.get(item.request.session, 0)))
            for item in queue if item.request.session not in whole
        ]  # fmt: skip
    raise AssertionError("a request starves")


def test_a_prompt_that_the_engine_cuts_counts_for_the_share_of_its_ue() -> None:
    running = [waiting(str(i), NOW_S, 301, 99, 300, ue=b"a", running_tokens=400) for i in range(20)]
    other = waiting("other", NOW_S, 301, 3, 300, ue=b"b")
    batch = Slo(coefficients=A100, own_tokens=512).plan([*running, other], NOW_S)
    assert sorted(item.ue for item in batch) == [b"a", b"b"]  # 400 and 109, and no second round


@pytest.mark.parametrize(("arrived_s", "taken"), [(NOW_S, [0, 4]), (NOW_S - 60.0, [4, 0])])
def test_guaranteed_rounds_are_part_of_the_share(arrived_s: float, taken: list[int]) -> None:
    """They come first once they are due."""
    rounds = [waiting(f"g{i}", arrived_s, 301, 99, 300, ue=b"a", speed_tps=4.0) for i in range(6)]
    rounds += [waiting(f"a{i}", NOW_S, 301, 99, 300, ue=b"a") for i in range(6)]
    rounds.append(waiting("other", NOW_S, 301, 3, 300, ue=b"b"))
    found = names(Slo(coefficients=A100, own_tokens=512).plan(rounds, NOW_S))
    assert [sum(name.startswith(kind) for name in found) for kind in ("g", "a")] == taken
    assert "other" in found


@pytest.mark.parametrize("many", [1, 3])
def test_late_guarantees_leave_a_fifth_of_a_pass_to_others(many: int) -> None:
    """One UE's late windows, which no deadline bounds, kept requests without a guarantee waiting for as long as all of
    them took.
    """
    plan = Slo(coefficients=Coefficients(5e-4, 0.0, 0.0, 4e-3), own_tokens=512, max_tokens=2048).learn(None, 0.01)
    late = [
        waiting(f"late{n}", NOW_S - 5, prefix=30, draft=255, computed=29, speed_tps=8.0, ahead_s=-9.0, ue=b"liar")
        for n in range(40)
    ]
    free = [waiting(f"free{n}", NOW_S, draft=4, ue=b"%d" % n) for n in range(many)]
    prompt = waiting("prompt", NOW_S, prefix=300, draft=4, computed=0, ue=b"prompt")
    batch = plan.after([*late, *free], []).plan([*late, *free, prompt], NOW_S)
    assert {f"free{n}" for n in range(many)} <= set(names(batch))
    free_s = sum(plan.coefficients.share_s(item.new_tokens, 0) for item in batch if item.speed_tps is None)
    late_s = sum(plan.coefficients.share_s(item.new_tokens, 0) for item in batch if item.speed_tps is not None)
    assert late_s > 0 and free_s <= late_s / 4


@pytest.mark.parametrize("speed_tps", [1.0, 2.0])
@pytest.mark.parametrize("ahead_s", [5.0, 0.0, -100.0])
def test_many_sessions_with_low_guarantees_make_no_pass_long_beside_others(speed_tps: float, ahead_s: float) -> None:
    """Passes lasted as long as the deadlines in them allowed, or longer if all were due at once: fast guaranteed rounds
    that came meanwhile were late.
    """
    plan = Slo(coefficients=Coefficients(5e-4, 0.0, 0.0, 1e-2), own_tokens=512).learn(None, 0.13)
    ahead = [
        waiting(f"{n}", prefix=30, draft=31, computed=29, speed_tps=speed_tps, ahead_s=ahead_s, ue=b"slow")
        for n in range(8)
    ]
    fast = waiting("fast", prefix=30, draft=3, computed=29, speed_tps=6.0, ue=b"fast")
    assert len(plan.after(ahead, []).plan(ahead, NOW_S)) == 8  # nobody else has rounds
    for rest in ([fast], []):
        batch = plan.after([*ahead, fast], []).plan([*ahead, *rest], NOW_S)
        slow_s = sum(plan.coefficients.share_s(item.new_tokens, 0) for item in batch if item.ue == b"slow")
        assert 0 < slow_s <= plan.spare_s and ("fast" in names(batch)) == bool(rest)
