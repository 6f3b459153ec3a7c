"""Windows that join a stream: what is sent, when, and which tokens a verdict is about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import ProtocolError
from testbed.protocols.messages import MOST_JOINING, Verdict
from testbed.ue.windows.joining import JoiningWindows
from tests.support.copying import index_drafter

LOOP = [5, 6, 7, 8]


def windows(prompt: list[int], window: int = 4, floor: int = 3) -> JoiningWindows:
    found = JoiningWindows(index_drafter("suffix", floor), window)
    found.begin(prompt)
    return found


def verdict(draft: int | None, joined: int = 0) -> Verdict:
    return Verdict(
        session=0, round=0, accepted=0, token=0, candidates=0, queried=0, gap=0.0, batch_size=1, queue_s=0.0,
        verify_s=0.0, judge_s=0.0, bs_s=0.0, draft=draft, joined=joined,
    )  # fmt: skip


def test_without_a_match_nothing_is_sent() -> None:
    assert windows([1, 2, 3, 4]).draft(50, set()) == []


def test_a_proposal_is_cut_into_windows_and_goes_on_where_they_end() -> None:
    found = windows(LOOP * 3)  # a match of 8 tokens: 16 are proposed
    sent = found.draft(50, set())
    assert [(one.number, one.base_len, one.ids.tolist()) for one in sent] == [(i, 12 + 4 * i, LOOP) for i in range(4)]
    assert found.draft(50, set()) == []  # all of it is away
    found.commit(LOOP)  # the match has grown by 4: 8 more tokens follow, 4 of the 16 are not away any longer
    assert [(one.base_len, one.ids.tolist()) for one in found.draft(50, set())] == [(28, LOOP), (32, LOOP), (36, LOOP)]


def test_no_more_is_away_than_the_base_station_keeps() -> None:
    found = windows(LOOP * 40)
    sent = found.draft(500, set())
    assert len(sent) == MOST_JOINING
    found.commit(LOOP[:2])
    assert found.draft(500, set()) == []  # no whole window has room
    found.commit(LOOP[2:])
    assert len(found.draft(500, set())) == 1


def test_a_token_that_was_not_foreseen_refutes_what_is_away() -> None:
    found = windows(LOOP * 3)
    found.draft(50, set())
    found.commit([5, 60])
    assert found.draft(50, set()) == []  # there is no match after it
    for token in [5, 6, 7]:
        found.commit([token])
    again = found.draft(50, set())
    assert again[0].base_len == 17 and again[0].ids.tolist() == [8, 5, 60, 5]


@pytest.mark.parametrize(("room", "count"), [(1, 0), (2, 1), (9, 8)])
def test_the_last_token_of_an_output_is_left_to_the_target(room: int, count: int) -> None:
    assert sum(len(one.ids) for one in windows(LOOP * 3).draft(room, set())) == count


def test_a_window_ends_before_a_token_that_ends_the_output() -> None:
    assert [one.ids.tolist() for one in windows(LOOP * 3).draft(50, {7})] == [[5, 6]]


def test_a_verdict_is_about_the_rest_of_its_window() -> None:
    found = windows(LOOP * 3)
    first, second, *_ = found.draft(50, set())
    assert found.verified(verdict(None)).tolist() == []
    assert found.verified(verdict(first.number, 4)).tolist() == LOOP
    found.commit([5, 6, 7])
    assert found.verified(verdict(first.number, 1)).tolist() == [8]
    assert found.verified(verdict(first.number, 3)).tolist() == [8, 5, 6]  # with the window after it
    for wrong, joined in ((second.number, 4), (99, 4), (first.number, 0), (first.number, 100)):
        with pytest.raises(ProtocolError):
            found.verified(verdict(wrong, joined))


def test_verdicts_of_a_session_that_was_opened_again_are_still_understood() -> None:
    found = windows(LOOP * 3)
    first, *_ = found.draft(50, set())
    found.reopened()
    assert found.verified(verdict(first.number, 4)).tolist() == LOOP
    again = found.draft(50, set())
    assert again[0].base_len == 12 and again[0].number > first.number


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=60), prompt=st.integers(1, 20), window=st.integers(1, 9),
    steps=st.lists(st.integers(1, 7), min_size=1, max_size=30),
)  # fmt: skip
def test_windows_continue_each_other_or_the_committed_prefix(
    text: list[int], prompt: int, window: int, steps: list[int]
) -> None:
    """Whatever the target says: windows have at most their length, and begin at the prefix or at a window's end."""
    ids = text[:prompt]
    found, kept = windows(list(ids), window, 1), list[int]()
    while len(ids) < len(text):
        ends = {len(ids), *kept}
        for one in found.draft(len(text) - len(ids), set()):
            assert 1 <= len(one.ids) <= window and one.base_len in ends and one.end < len(text)
            ends.add(one.end)
            kept.append(one.end)
        step = text[len(ids) : len(ids) + steps[len(ids) % len(steps)]]
        found.commit(step)
        ids += step


def test_ids_are_those_of_the_wire() -> None:
    assert windows(LOOP * 3).draft(50, set())[0].ids.dtype == np.int32
