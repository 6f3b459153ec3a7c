"""Prompts in pieces under `Slo`: how large, beside whom, and that everybody's turn still comes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import PIECE, Pending
from testbed.bs.scheduling.slo import Slo
from testbed.bs.scheduling.slo_batch import REST
from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients, RequestWork

NOW_S = 50.0
TIMES = Coefficients(a=1e-3, b_compute=2e-7, b_read=5e-6, c=1e-2)


def waiting(
    name: str,
    prefix: int,
    computed: int = 0,
    draft: int = 4,
    speed_tps: float | None = 4.0,
    arrived_s: float = NOW_S,
    ue: bytes = b"",
) -> Pending:
    request = VerifyRequest(name, np.zeros(prefix, np.int32), np.zeros(draft, np.int32))
    return Pending(request, arrived_s, computed, speed_tps, ue=ue)


def took_s(batch: Sequence[Pending]) -> float:
    return TIMES.batch_s(RequestWork(p.new_tokens, p.cached_tokens) for p in batch)


def cut(batch: Sequence[Pending], queue: Sequence[Pending]) -> list[Pending]:
    """Items of a batch that are pieces of prompts."""
    return [item for item in batch if not any(item is waiting for waiting in queue)]


def test_a_piece_is_the_largest_that_keeps_the_pass_short() -> None:
    plan = Slo(coefficients=TIMES, hold_s=0.25)
    follow_ups = [waiting(f"f{i}", 300, 299) for i in range(3)]
    queue = [waiting("new", 900), *follow_ups]
    batch = plan.plan(queue, NOW_S)
    (piece,) = cut(batch, queue)
    assert len(batch) == 4 and piece.request.session == "new"
    end = len(piece.request.prefix)
    assert end % PIECE == 0 and len(piece.request.draft) == 0
    assert took_s(batch) <= 0.25 < took_s([*follow_ups, queue[0].piece(end + PIECE)])


def test_a_prompt_that_fits_goes_whole_and_so_does_every_one_without_a_bound() -> None:
    short, long = waiting("s", 150), waiting("l", 900)
    assert Slo(coefficients=TIMES, hold_s=0.25).plan([short], NOW_S) == [short]
    assert Slo(coefficients=TIMES).plan([long], NOW_S) == [long]
    assert Slo(coefficients=TIMES, hold_s=math.inf).plan([long], NOW_S) == [long]


def test_a_piece_leaves_deadlines_in_its_pass_as_they_are() -> None:
    """The follow-up is due in 120 ms; a prompt in pieces takes what is left of that, not all that a pass may last."""
    plan = Slo(coefficients=TIMES, hold_s=1.0)
    due = replace(waiting("f", 300, 299, speed_tps=8.0), acceptance=0.0, draft_s=0.005)
    batch = plan.plan([waiting("new", 900, arrived_s=NOW_S - 0.1), due], NOW_S)
    assert batch[0] is due and len(batch) == 2
    assert took_s(batch) <= 0.12 < took_s([due, waiting("new", 900).piece(len(batch[1].request.prefix) + PIECE)])


def test_the_head_of_the_line_makes_a_step_even_where_nothing_fits() -> None:
    plan = Slo(coefficients=TIMES, hold_s=0.0)
    late = waiting("late", 900, arrived_s=NOW_S - 100)
    (piece,) = plan.plan([late], NOW_S)
    assert len(piece.request.prefix) == PIECE


def test_bounds_of_a_pass_bound_pieces() -> None:
    long = waiting("l", 900)
    (piece,) = Slo(coefficients=TIMES, hold_s=9.0, max_tokens=300).plan([long], NOW_S)
    assert len(piece.request.prefix) == 256
    (piece,) = Slo(coefficients=TIMES, hold_s=9.0, kv_tokens=500).plan([replace(long, computed=200)], NOW_S)
    assert len(piece.request.prefix) == 448
    with pytest.raises(BadInput, match="a pass may last"):
        Slo(coefficients=TIMES, hold_s=-1.0)


@pytest.mark.parametrize("speed_tps", [8.0, None])
def test_late_prompts_without_a_guarantee_leave_a_place_to_those_of_other_ues(speed_tps: float | None) -> None:
    """One UE's long prompts filled each pass, as long as it may last, until the last of them was computed: a UE with a
    guarantee, whose prompt came later, was not served for 20 s.
    """
    plan = Slo(coefficients=TIMES, hold_s=0.25, spare_s=0.25)
    crowd = [waiting(f"c{i}", 3800, 0, speed_tps=None, arrived_s=NOW_S - 9, ue=b"crowd") for i in range(50)]
    short = waiting("short", 60, speed_tps=speed_tps, ue=b"other")
    batch = plan.plan([*crowd, short], NOW_S)
    (piece,) = cut(batch, [*crowd, short])
    assert piece.ue == b"crowd" and short in batch  # whole
    assert took_s([short, waiting("c", 3800).piece(len(piece.request.prefix) + PIECE)]) > 0.25 >= took_s(batch)
    batch = plan.plan([*crowd, waiting("long", 3800, speed_tps=speed_tps, ue=b"other")], NOW_S)
    sizes = [len(item.request.prefix) for item in batch]
    assert len(sizes) == 2 and max(sizes) <= 2 * min(sizes)
    batch = plan.plan(crowd, NOW_S)
    assert took_s(batch) > 0.2 and len(batch) == 1  # alone, it has all the time


@pytest.mark.parametrize("hold_s", [0.0, 0.011, 0.05, 0.08, 0.2])
def test_however_short_a_pass_may_be_a_prompt_with_a_guarantee_begins(hold_s: float) -> None:
    """Equal parts of a short pass held no piece, so that late prompts alone were computed."""
    plan = Slo(coefficients=TIMES, hold_s=hold_s, spare_s=max(hold_s, 0.02))
    crowd = [waiting(f"c{i}", 3800, 0, speed_tps=None, arrived_s=NOW_S - 9, ue=b"crowd") for i in range(50)]
    batch = plan.plan([*crowd, waiting("other", 200, speed_tps=8.0, ue=b"other")], NOW_S)
    assert [item.ue for item in batch] == [b"crowd", b"other"]
    assert took_s(batch) <= max(hold_s, TIMES.c + TIMES.share_s(PIECE, 0)) + TIMES.share_s(PIECE, 0) + 1e-9
    slow = waiting("slow", 200, speed_tps=1e-3, ue=b"slow")  # nothing hurries
    assert hold_s > 0.05 or [item.ue for item in plan.plan([*crowd, slow], NOW_S)] == [b"crowd"]


@pytest.mark.parametrize("size", [2, 5, 12])
def test_a_late_round_without_a_guarantee_keeps_those_of_no_ue_out_of_the_pass(size: int) -> None:
    plan = Slo(coefficients=TIMES, hold_s=0.25, spare_s=0.25)
    prompts = [waiting(f"c{i}", 3800, speed_tps=None, arrived_s=NOW_S - 9, ue=b"crowd") for i in range(20)]
    rounds = [waiting(f"r{i}", 300, 299, speed_tps=None, ue=b"ue-%d" % i) for i in range(size)]
    batch = plan.plan([*prompts, *rounds], NOW_S)
    assert {item.ue for item in batch} == {b"crowd", *(one.ue for one in rounds)}


ENTRIES = st.tuples(
    st.integers(1, 1200), st.integers(0, 1200), st.integers(0, 8), st.sampled_from([None, 2.0, 8.0]), st.floats(0, 2)
)
QUEUES = st.lists(ENTRIES, min_size=1, max_size=10).map(
    lambda rows: [waiting(str(i), n, c, k, s, NOW_S - age) for i, (n, c, k, s, age) in enumerate(rows)]
)


@given(queue=QUEUES, hold_s=st.floats(0, 0.5), size=st.integers(1, 10))
def test_served_to_its_end_everybody_goes_whole_once_and_no_prompt_makes_a_pass_long(
    queue: list[Pending], hold_s: float, size: int
) -> None:
    plan = Slo(coefficients=TIMES, hold_s=hold_s, max_requests=size)
    now_s, left, steps = NOW_S, list(queue), 0
    while left:
        batch = plan.plan(left, now_s)
        assert 0 < len(batch) <= size
        assert len({item.request.session for item in batch}) == len(batch)
        pieces = cut(batch, left)
        prompts = [*pieces, *(p for p in batch if p.new_tokens - len(p.request.draft) > PIECE)]
        if prompts and batch != prompts[:1]:
            last = max(i for i, item in enumerate(batch) if any(item is p for p in prompts))
            due = plan.queues(left, now_s)
            lates = {entry.session for entry in (*due.urgent, *due.utility) if entry.late}
            late = [p for p in batch[:last] if p.speed_tps is not None and p.request.session in lates]
            others = [p for p in batch[: last + 1] if p.speed_tps is None]
            fifth = REST * (took_s(late) - TIMES.c) if late else 0.0  # beside late ones, whose deadlines bound nothing
            within = took_s(others) - TIMES.c <= fifth + 1e-9 if others else False
            assert last == 0 or within or took_s(batch[: last + 1]) <= hold_s + 1e-9
        for item in pieces:
            (asked,) = [p for p in left if p.request.session == item.request.session]
            assert item.computed < len(item.request.prefix) < len(asked.request.prefix)
            left = [replace(p, computed=len(item.request.prefix)) if p is asked else p for p in left]
        left = [p for p in left if not any(p is item for item in batch)]
        now_s += took_s(batch)
        steps += 1
    assert steps <= len(queue) + sum(-(-len(p.request.prefix) // PIECE) for p in queue)


@given(queue=QUEUES, seed=st.randoms(use_true_random=False))
def test_the_order_in_which_requests_are_given_does_not_matter(queue: list[Pending], seed: object) -> None:
    plan = Slo(coefficients=TIMES, hold_s=0.2)
    shuffled = list(queue)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    taken = [[(p.request.session, len(p.request.prefix)) for p in plan.plan(q, NOW_S)] for q in (queue, shuffled)]
    assert taken[0] == taken[1]


ARRIVALS = st.lists(
    st.tuples(st.floats(0, 0.3), st.integers(1, 900), st.sampled_from([None, 2.0, 8.0, 0.01]), st.integers(0, 3)),
    min_size=1,
    max_size=30,
)


@given(
    arrivals=ARRIVALS, spare_s=st.sampled_from([math.inf, 0.0, 0.05]), hold_s=st.sampled_from([None, 0.02, 0.05, 0.2])
)
def test_prompts_and_rounds_of_several_ues_all_come_to_their_turn(
    arrivals: list[tuple[float, int, float | None, int]], spare_s: float, hold_s: float | None
) -> None:
    """Starvation, with places for other UEs and pieces: everyone is served by the time that one pass for each piece of
    all of them takes after its deadline, counted without the scheduler.
    """
    plan = Slo(coefficients=TIMES, spare_s=spare_s, hold_s=hold_s, own_tokens=512)
    coming, left, now_s, longest_s, at_s = list[Pending](), list[Pending](), 0.0, 0.0, 0.0
    for number, (gap_s, prefix, speed_tps, ue) in enumerate(arrivals):
        at_s += gap_s
        coming.append(waiting(str(number), prefix, speed_tps=speed_tps, arrived_s=at_s, ue=b"%d" % ue))
    due_s = {item.request.session: plan.due_s(item) for item in coming}
    passes = 2 + sum(1 + prefix // PIECE for _, prefix, _, _ in arrivals)
    while left or coming:
        now_s = now_s if left else max(now_s, coming[0].arrived_s)
        while coming and coming[0].arrived_s <= now_s:
            left.append(coming.pop(0))
        batch = plan.plan(left, now_s)
        assert batch
        plan, longest_s = plan.after(left, batch), max(longest_s, took_s(batch))
        for item in batch:
            (asked,) = [one for one in left if one.request.session == item.request.session]
            left.remove(asked)
            if item.request is asked.request:
                assert now_s <= due_s[item.request.session] + passes * longest_s
            else:
                left.append(replace(asked, computed=len(item.request.prefix)))
        now_s += took_s(batch)
