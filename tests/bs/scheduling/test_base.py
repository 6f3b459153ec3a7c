"""First come, first served: what goes into a pass, by properties that any queue must show."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import Pending
from testbed.bs.scheduling.base import Fcfs, Scheduler
from testbed.errors import BadInput


def waiting(name: str, arrived_s: float, prefix: int, draft: int, computed: int = 0) -> Pending:
    request = VerifyRequest(name, np.zeros(prefix, np.int32), np.zeros(draft, np.int32))
    return Pending(request, arrived_s, computed)


ENTRIES = st.tuples(
    st.integers(0, 8).map(float), st.integers(1, 400), st.integers(0, 40), st.integers(0, 400)
)  # arrival, prefix, draft, computed
QUEUES = st.lists(ENTRIES, max_size=24).map(
    lambda rows: [waiting(str(i), at, prefix, k, computed) for i, (at, prefix, k, computed) in enumerate(rows)]
)
BOUNDS = st.builds(Fcfs, max_requests=st.integers(1, 12), max_tokens=st.integers(1, 900))


@pytest.mark.parametrize(
    ("prefix", "draft", "computed", "expected"),
    [
        (100, 8, 0, 108),  # a first pass reads the whole prompt
        (109, 8, 100, 17),  # later ones what was committed since, and the draft
        (101, 8, 101, 9),  # at least one committed token is read again, for its logits
        (50, 8, 101, 9),  # a session that was opened anew with less
        (100, 0, 99, 1),  # plain decoding
    ],
)
def test_new_tokens_by_hand(prefix: int, draft: int, computed: int, expected: int) -> None:
    assert waiting("x", 0.0, prefix, draft, computed).new_tokens == expected


@given(queue=QUEUES, plan=BOUNDS)
def test_the_first_to_arrive_always_goes_and_the_rest_in_order(queue: list[Pending], plan: Fcfs) -> None:
    batch = plan.plan(queue, 99.0)
    line = sorted(range(len(queue)), key=lambda i: (queue[i].arrived_s, i))
    assert [item.request.session for item in batch] == [str(i) for i in line[: len(batch)]]
    assert bool(batch) == bool(queue)


@given(queue=QUEUES, plan=BOUNDS)
def test_bounds_hold_and_nothing_that_fits_is_left(queue: list[Pending], plan: Fcfs) -> None:
    batch = plan.plan(queue, 99.0)
    tokens = sum(item.new_tokens for item in batch)
    assert len(batch) <= plan.max_requests
    assert tokens <= plan.max_tokens or len(batch) == 1
    if len(batch) < min(len(queue), plan.max_requests):
        left = [item for item in queue if item not in batch]
        assert tokens + min(left, key=lambda item: item.arrived_s).new_tokens > plan.max_tokens


@given(queue=QUEUES, plan=BOUNDS, now_s=st.floats(0, 1e6))
def test_a_plan_depends_on_the_queue_alone_and_leaves_it_as_it_was(
    queue: list[Pending], plan: Fcfs, now_s: float
) -> None:
    before = copy.copy(queue)
    first = plan.plan(queue, now_s)
    assert plan.plan(tuple(queue), now_s) == first
    assert queue == before
    assert all(any(item is waiting_ for waiting_ in queue) for item in first)


@given(queue=QUEUES, plan=BOUNDS)
def test_a_queue_is_served_to_its_end_in_the_order_of_arrival(queue: list[Pending], plan: Fcfs) -> None:
    line = sorted(queue, key=lambda item: item.arrived_s)
    served: list[Pending] = []
    while queue:
        batch = plan.plan(queue, 0.0)
        served += batch
        queue = [item for item in queue if item not in batch]
    assert served == line


def test_a_request_beyond_the_bound_goes_alone() -> None:
    queue = [waiting("large", 0.0, 5000, 8), waiting("small", 1.0, 5, 8)]
    assert [p.request.session for p in Fcfs(8, 4096).plan(queue, 2.0)] == ["large"]
    assert [p.request.session for p in Fcfs(8, 4096).plan(queue[::-1], 2.0)] == ["large"]


@pytest.mark.parametrize(("requests", "tokens"), [(0, 70), (-1, 70), (3, 0)])
def test_bounds_under_which_nothing_would_ever_go_are_refused(requests: int, tokens: int) -> None:
    with pytest.raises(BadInput, match="1 request and 1 token or more"):
        Fcfs(requests, tokens)


@pytest.mark.parametrize(
    ("prefix", "computed", "most", "end"),
    [
        (200, 0, 100, 64),  # pieces end at multiples of 64
        (200, 0, 63, 0),
        (200, 64, 64, 128),
        (200, 70, 64, 128),  # what is cached need not end at one
        (200, 128, 64, 192),
        (193, 128, 64, 192),
        (192, 128, 64, 0),  # the last token belongs to the round
        (65, 0, 500, 64),
        (64, 0, 500, 0),
        (1000, 0, 500, 448),
    ],
)
def test_where_pieces_end_by_hand(prefix: int, computed: int, most: int, end: int) -> None:
    item = waiting("x", 0.0, prefix, 5, computed)
    assert item.ends(most) == end
    if end:
        piece = item.piece(end)
        assert (piece.cached_tokens, piece.new_tokens) == (computed, end - computed)
        assert piece.arrived_s == item.arrived_s and piece.request.session == "x"


@given(queue=QUEUES, chunk=st.integers(64, 400), requests=st.integers(1, 12))
def test_in_pieces_nobody_waits_for_more_than_a_chunk_of_anothers_prompt(
    queue: list[Pending], chunk: int, requests: int
) -> None:
    """Served to its end: every request goes whole once, after pieces that each bring it further."""
    plan, computed, whole = Fcfs(requests, 900, chunk), {}, []
    while queue:
        batch = plan.plan(queue, 0.0)
        assert 0 < len(batch) <= requests
        for item in batch:
            name, prefix = item.request.session, len(item.request.prefix)
            (asked,) = [p for p in queue if p.request.session == name]
            assert prefix - item.cached_tokens <= chunk
            if item is asked:
                whole.append(name)
                queue = [p for p in queue if p is not asked]
            else:
                assert prefix > item.computed and prefix % 64 == 0 and prefix < len(asked.request.prefix)
                assert computed.get(name, -1) < prefix
                computed[name] = prefix
                queue = [replace(p, computed=prefix) if p is asked else p for p in queue]
    assert len(whole) == len(set(whole))


def test_pieces_of_nothing_are_refused() -> None:
    with pytest.raises(BadInput, match="64 tokens or more, not 63"):
        Fcfs(chunk_tokens=63)


def of_ues(*rows: tuple[str, bytes, float, int]) -> list[Pending]:
    """Requests by session, UE, arrival and drafted tokens, each of one new prefix token."""
    return [replace(waiting(name, at, 101, draft, 101), ue=ue) for name, ue, at, draft in rows]


def sessions(batch: list[Pending]) -> list[str]:
    return [item.request.session for item in batch]


def test_ues_take_turns_however_many_sessions_one_has() -> None:
    queue = of_ues(("a1", b"a", 0, 4), ("a2", b"a", 1, 4), ("a3", b"a", 2, 4), ("b1", b"b", 3, 4), ("c1", b"c", 4, 4))
    assert sessions(Fcfs().plan(queue, 9.0)) == ["a1", "b1", "c1", "a2", "a3"]
    assert sessions(Fcfs(max_requests=3).plan(queue, 9.0)) == ["a1", "b1", "c1"]


def test_one_ue_cannot_fill_a_pass_while_others_wait() -> None:
    windows = [(f"a{i}", b"a", float(i), 199) for i in range(64)]  # 200 new tokens each
    queue = of_ues(*windows, ("b1", b"b", 99.0, 7))
    batch = Fcfs(own_tokens=512).plan(queue, 100.0)
    assert sessions(batch) == ["a0", "b1", "a1"]
    assert sum(item.new_tokens for item in batch) == 408
    alone = Fcfs(own_tokens=512).plan(queue[:-1], 100.0)
    assert sum(item.new_tokens for item in alone) == 40 * 200  # nobody else waits


def test_a_ue_that_drafts_meanwhile_counts_as_well() -> None:
    """It was forgotten between its rounds, and then waited for a whole pass of the other one."""
    windows = of_ues(*((f"a{i}", b"a", 9.9, 199) for i in range(64)))
    scheduler: Scheduler = Fcfs(own_tokens=512)
    for at_s in (1.0, 2.0):
        both = of_ues(("b1", b"b", at_s, 7), ("a0", b"a", at_s + 0.5, 199))
        scheduler = scheduler.after(both, scheduler.plan(both, at_s + 0.6))
    assert sessions(scheduler.plan(windows, 10.0)) == ["a0", "a1"]
    later = [replace(item, arrived_s=30.0) for item in windows]
    assert len(scheduler.plan(later, 30.0)) == 40  # the other one has had no round for long


def test_a_prompt_that_the_engine_cuts_counts_until_it_is_computed() -> None:
    """Each pass took a further long prompt of the same UE beside its unfinished ones."""
    queue = of_ues(("a1", b"a", 0, 4), ("b1", b"b", 1, 4))
    running = [replace(item, running_tokens=3_000 if item.ue == b"a" else 0) for item in queue]
    assert sessions(Fcfs(own_tokens=512).plan(running, 9.0)) == ["b1"]
    assert sessions(Fcfs(own_tokens=512).plan(running[:1], 9.0)) == ["a1"]  # nobody else has rounds
    nearly = [replace(item, running_tokens=490) for item in queue]
    assert sessions(Fcfs(own_tokens=512).plan(nearly, 9.0)) == ["a1", "b1"]


def test_short_requests_count_as_well() -> None:
    """64 streams of one UE filled a pass with one token each, whose judging and answering made the others wait."""
    queue = of_ues(*((f"a{i}", b"a", float(i), 0) for i in range(64)), ("b1", b"b", 99.0, 7))
    assert len(Fcfs(own_tokens=512).plan(queue, 100.0)) == 33
    assert len(Fcfs(own_tokens=512).plan(queue[:-1], 100.0)) == 64


def test_the_first_request_of_a_ue_goes_whatever_its_size() -> None:
    queue = of_ues(("a1", b"a", 0, 599), ("a2", b"a", 1, 0), ("b1", b"b", 2, 599))
    assert sessions(Fcfs(own_tokens=512).plan(queue, 9.0)) == ["a1", "b1"]


@given(
    owners=st.lists(st.integers(0, 3), min_size=1, max_size=24),
    own=st.integers(1, 400),
    most=st.integers(1, 2000),
    data=st.data(),
)
def test_a_queue_of_several_ues_is_served_to_its_end(
    owners: list[int], own: int, most: int, data: st.DataObject
) -> None:
    rows = [(str(i), b"%d" % ue, float(data.draw(st.integers(0, 8))), data.draw(st.integers(0, 300)))
            for i, ue in enumerate(owners)]  # fmt: skip
    queue, plan = of_ues(*rows), Fcfs(max_tokens=most, own_tokens=own)
    while queue:
        batch = plan.plan(queue, 9.0)
        first = min(queue, key=lambda item: item.arrived_s)
        assert batch[0] is first
        for ue in {item.ue for item in batch}:
            theirs = [item for item in batch if item.ue == ue]
            if len(theirs) > 1 and len({item.ue for item in queue}) > 1:
                assert sum(item.new_tokens for item in theirs) <= own
            assert [item.arrived_s for item in theirs] == sorted(item.arrived_s for item in theirs)
        queue = [item for item in queue if not any(item is taken for taken in batch)]


def test_tokens_whose_keys_and_values_are_read_count_for_the_share_of_a_ue() -> None:
    """64 rounds on contexts of 3,900 tokens were taken at once beside another UE's."""
    queue = [replace(waiting(f"a{i}", float(i), 3_901, 8, 3_900), ue=b"a") for i in range(64)]
    queue.append(replace(waiting("b1", 99.0, 101, 8, 100), ue=b"b"))
    batch = Fcfs(own_tokens=512).plan(queue, 100.0)
    assert sessions(batch) == ["a0", "b1", "a1", "a2"]  # of 9 new tokens and 3,900 / 32 each
    assert len(Fcfs(own_tokens=512).plan(queue[:-1], 100.0)) == 64
