"""N-gram predictions against a search through the texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.experiments.lockstep.phrases import ORDERS, Phrases

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=5)


def searched(texts: list[list[int]], tail: list[int]) -> int | None:
    """The token after the last occurrence of the longest matching n-gram."""
    for order in ORDERS:
        for text in reversed(texts):
            for end in range(len(text) - 1, order - 1, -1):
                if len(tail) >= order and text[end - order : end] == tail[-order:]:
                    return text[end]
    return None


@given(TEXTS, st.lists(st.integers(0, 3), max_size=12), st.integers(0, 12))
def test_it_finds_what_a_search_finds(texts: list[list[int]], tail: list[int], count: int) -> None:
    phrases = Phrases()
    for text in texts:
        phrases.learn(text, 0)
    found = phrases.follow(tail, count)
    assert len(found) <= count
    for i, token in enumerate(found):
        assert token == searched(texts, tail + found[:i])
    if len(found) < count:
        assert searched(texts, tail + found) is None


def test_what_stands_before_the_start_is_only_context() -> None:
    phrases = Phrases()
    phrases.learn([1, 2, 3, 4, 5], 4)
    assert phrases.follow([3, 4], 3) == [5]
    assert phrases.follow([1, 2], 3) == []
