"""The suffix automaton against brute force over the history, and its memory bound."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.ue.drafters.suffix_automaton import BREAK, RECENT, SuffixAutomaton
from testbed.ue.drafters.text_memory import TextMemory

SHORT = st.lists(st.integers(0, 2), max_size=24)
TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), max_size=6)


def longest_before(text: list[int]) -> tuple[int, int]:
    """Length and latest continuation of the longest suffix that also ends before the end of the text."""
    for length in range(len(text) - 1, 0, -1):
        suffix = text[-length:]
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == suffix:
                return length, end
    return 0, 0


def longest_followed(texts: list[list[int]], text: list[int]) -> int:
    """Length of the longest suffix of a text that occurs in one of others with a token after it."""
    for length in range(len(text), 0, -1):
        suffix = text[-length:]
        if any(other[at : at + length] == suffix for other in texts for at in range(len(other) - length)):
            return length
    return 0


@settings(max_examples=60, deadline=None)
@given(SHORT)
def test_longest_suffix_is_that_of_brute_force_at_its_latest_place(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, 1):
        automaton.append(token)
        assert automaton.longest == longest_before(text[:end])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=RECENT, max_size=2 * RECENT))
def test_long_chains_know_a_place_where_the_suffix_ended(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    length, place = automaton.longest
    assert length == longest_before(text)[0]
    assert text[place - length : place] == text[len(text) - length :] and place < len(text)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 2), max_size=30))
def test_a_text_is_followed_through_others_while_they_grow(texts: list[list[int]], text: list[int]) -> None:
    automaton, state, length, known = SuffixAutomaton(), 0, 0, []
    for number, token in enumerate(text):
        if number < len(texts):  # after the text has begun
            for one in texts[number]:
                automaton.append(one)
            automaton.end_text()
            known.append(texts[number])
            state, length = 0, 0
            for earlier in text[:number]:
                state, length = automaton.step(state, length, earlier)
        state, length = automaton.step(state, length, token)
        matched, place = automaton.continued(state, length)
        assert matched == longest_followed(known, text[: number + 1])
        if matched:
            assert automaton.text[place] != BREAK
            assert automaton.text[place - matched : place] == text[number + 1 - matched : number + 1]


@settings(max_examples=60, deadline=None)
@given(TEXTS, SHORT, SHORT)
def test_a_place_stays_valid_when_the_automaton_grows(texts: list[list[int]], text: list[int], more: list[int]) -> None:
    automaton, state, length = SuffixAutomaton(), 0, 0
    for one in [text, *texts]:
        for token in one:
            automaton.append(token)
        automaton.end_text()
    for token in text:
        state, length = automaton.step(state, length, token)
    for token in more:
        automaton.append(token)
    automaton.end_text()
    for token in more:
        state, length = automaton.step(state, length, token)
    whole = text + more
    assert length >= longest_followed([*[[*one, 0] for one in texts], [*more, 0]], whole)
    matched, place = automaton.continued(state, length)
    assert automaton.text[place - matched : place] == whole[len(whole) - matched :]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), max_size=20))
def test_memory_is_bounded_over_any_requests(tokens: int, requests: list[list[int]]) -> None:
    memory = TextMemory(tokens)
    for request in requests:
        memory.add(request)
        assert memory.states <= 2 * tokens + 2
        assert sum(len(one.text) for one in memory.automata) <= tokens


@settings(max_examples=60, deadline=None)
@given(st.integers(20, 60), st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=40))
def test_latest_requests_are_kept(tokens: int, requests: list[list[int]]) -> None:
    memory = TextMemory(tokens)
    for request in requests:
        memory.add(request)
    texts = [token for one in memory.automata for token in one.text]
    wanted = [token for request in requests for token in [*request, BREAK]][-(tokens // 2 - 7) :]
    assert texts[-len(wanted) :] == wanted
