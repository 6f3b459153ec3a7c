"""Prompts in pieces beside an engine that holds few sessions: simulated with a least-recently-used cache."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import Pending
from testbed.bs.scheduling.slo import Slo
from testbed.bs.scheduling.slo_rules import BegunPrompts
from testbed.optim.pass_time import Coefficients

MOST_PLANS = 3000
CPU = Coefficients(3e-4, 2e-8, 1e-7, 5e-3)
"""A pass of 512 new tokens takes 0.16 s, so that prompts share passes by time."""


def prompt(name: str, tokens: int, ue: bytes, computed: int = 0, speed_tps: float | None = None) -> Pending:
    request = VerifyRequest(name, np.zeros(tokens, np.int32), np.zeros(4, np.int32))
    return Pending(request, 0.0, computed, speed_tps, ue=ue)


class Engine:
    """Places for sessions, the least recently used first; a pass computes all that is planned."""

    def __init__(self, places: int) -> None:
        self.places, self.held, self.evicted = places, OrderedDict[str, int](), 0

    def compute(self, batch: list[Pending], busy: set[str]) -> None:
        for item in batch:
            name = item.request.session
            self.held.pop(name, None)
            if len(self.held) == self.places:
                lost = next(iter([one for one in self.held if one not in busy] or self.held))
                self.evicted += self.held.pop(lost)
            self.held[name] = len(item.request.prefix)


def served(queue: list[Pending], plan: Slo, places: int) -> tuple[list[str], Engine]:
    """Sessions in the order in which they are finished, and the engine."""
    engine, done = Engine(places), list[str]()
    plan = plan.learn(None, None)
    for now_s in range(MOST_PLANS):
        if not queue:
            break
        queue = [replace(item, computed=engine.held.get(item.request.session, 0)) for item in queue]
        batch = plan.plan(queue, float(now_s))
        assert batch
        engine.compute(batch, {item.request.session for item in batch})
        plan = plan.after(queue, batch)
        whole = [item.request.session for item in batch if any(item.request is one.request for one in queue)]
        done += whole
        for name in whole:
            engine.held.pop(name, None)
        queue = [item for item in queue if item.request.session not in whole]
    return done, engine


def test_more_long_prompts_than_places_are_finished_without_an_eviction() -> None:
    queue = [prompt(str(i), 3000, b"%d" % i) for i in range(20)]
    plan = Slo(coefficients=CPU, cuts=True, max_tokens=2048, own_tokens=512)
    done, engine = served(queue, replace(plan, max_sessions=8), 8)
    assert (len(done), engine.evicted) == (20, 0)
    assert served(queue, plan, 8)[1].evicted > 1000


@given(
    sizes=st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 4)), min_size=1, max_size=24),
    places=st.integers(2, 8),
    tokens=st.sampled_from([None, 4000, 16_000]),
)
def test_every_prompt_is_finished(sizes: list[tuple[int, int]], places: int, tokens: int | None) -> None:
    queue = [prompt(str(i), size, b"%d" % ue) for i, (size, ue) in enumerate(sizes)]
    plan = Slo(coefficients=CPU, cuts=True, max_tokens=256, own_tokens=512, max_sessions=places, kv_tokens=tokens)
    assert len(served(queue, plan, places)[0]) == len(queue)


def test_a_ue_that_has_no_prompt_begins_beside_one_that_has_all() -> None:
    begun = BegunPrompts([(b"a", 100)] * 4, 8, None)
    assert not begun.room(b"a", 100) and begun.room(b"b", 100)
    begun.take(b"b", 100)
    assert not begun.room(b"b", 100)
    assert begun.room(b"c", 100)


def test_prompts_count_by_their_tokens_too_and_none_passes_one_without_room() -> None:
    begun = BegunPrompts([(b"a", 4000)], None, 10_000)
    assert begun.room(b"a", 1000) and begun.room(b"b", 6000)
    assert not begun.room(b"a", 1001) and not begun.room(b"a", 1)  # it would pass the one before it
    assert begun.room(b"b", 6000)
    assert not begun.room(b"b", 6001) and not begun.room(b"c", 1)
    assert BegunPrompts([], 1, 10).room(b"a", 100)  # alone


def test_a_hurried_guarantee_begins_at_once() -> None:
    queue = [prompt(str(i), 3000, b"%d" % i, computed=64) for i in range(8)]
    plan = Slo(coefficients=CPU, cuts=True, max_tokens=512, max_sessions=8).learn(None, None)
    fresh = prompt("fresh", 3000, b"x")
    promised = prompt("promised", 3000, b"y", speed_tps=4.0)
    names = [item.request.session for item in plan.plan([*queue, fresh, promised], 0.0)]
    assert "promised" in names and "fresh" not in names


@pytest.mark.parametrize(("unfinished", "pieces", "rounds"), [(0, True, 1), (300, True, 1), (3000, False, 1)])
def test_what_the_engine_has_leaves_less_room(unfinished: int, pieces: bool, rounds: int) -> None:
    plan = Slo(coefficients=CPU, cuts=True, max_tokens=512).learn(None, None)
    waiting = [prompt("long", 3000, b"a"), prompt("round", 300, b"b", computed=299)]
    found = plan.beside([prompt("running", unfinished, b"c")] if unfinished else []).plan(waiting, 0.0)
    assert sum(len(item.request.prefix) > 300 for item in found) == 0 or pieces
    assert sum(item.request.session == "round" for item in found) == rounds
    new = sum(item.new_tokens for item in found)
    assert new <= (256 + 5 if unfinished > 512 else 512 - unfinished)
    assert any(item.request.session == "long" for item in found) == pieces


@pytest.mark.parametrize(("sessions", "most"), [(8, 5), (None, 40)])
def test_requests_that_the_engine_has_take_places_of_the_next_pass(sessions: int | None, most: int) -> None:
    """It planned as many as the engine computes at once, so that the rest was computed, later, beside any others."""
    plan = Slo(coefficients=CPU, max_sessions=sessions).learn(None, None)
    waiting = [prompt(str(i), 50, b"%d" % i, computed=49) for i in range(40)]
    running = [prompt(f"had{i}", 50, b"x", computed=49) for i in range(3)]
    assert len(plan.beside(running).plan(waiting, 0.0)) == most


def test_nothing_is_beside_the_next_plan_unless_it_is_said() -> None:
    plan = Slo(coefficients=CPU)
    assert plan.beside([]) is plan
    assert plan.beside([prompt("a", 10, b"a")]).beside([]) == plan


def test_prompts_of_one_ue_leave_tokens_to_others_and_none_of_many_ues_takes_too_few() -> None:
    """Tokens ended a pass before its time did: a UE with 60 sessions had them all, and others waited for seconds."""
    plan = Slo(coefficients=CPU, cuts=True, max_tokens=512, own_tokens=512).learn(None, None)
    fast = replace(plan, coefficients=Coefficients(1e-5, 0.0, 0.0, 1e-3))
    many = [prompt(f"a{i:02}", 350, b"a") for i in range(60)]
    others = [replace(prompt(f"b{i}", 350, b"b%d" % i), arrived_s=0.5) for i in range(3)]
    for one in (plan, fast):
        tokens = {item.ue: item.new_tokens for item in one.plan([*many, *others], 0.6)}
        assert set(tokens) == {b"a", b"b0", b"b1", b"b2"} and min(tokens.values()) >= 64
    crowd = [prompt(f"{i}", 3000, b"%d" % i) for i in range(40)]
    for one in (plan, fast):
        assert sum(item.new_tokens for item in one.plan(crowd, 0.6)) >= 7 * 64


def test_hurried_prompts_leave_a_quarter_of_a_pass_to_other_ues() -> None:
    """One UE with 54 low guarantees had all passes until its prompts of 4,000 tokens were computed."""
    plan = Slo(coefficients=CPU, cuts=True, max_tokens=512, own_tokens=512, max_sessions=16).learn(CPU, 0.5)
    late = [prompt(f"a{i:02}", 4000, b"a", speed_tps=0.2) for i in range(54)]
    others = [replace(prompt(f"b{i}", 350, b"b%d" % i), arrived_s=99.0) for i in range(3)]
    plan = replace(plan, kv_tokens=16 * 4096)
    for queue in ([*late, *others], [*others, *late], [*(replace(one, computed=64) for one in late[:8]), *others]):
        tokens = {item.ue: item.new_tokens for item in plan.plan(queue, 100.0)}
        assert tokens[b"a"] >= 256 and sum(tokens.get(b"b%d" % i, 0) for i in range(3)) >= 64
    assert [item.new_tokens for item in plan.plan(late[:1], 100.0)] == [512]
