"""Windows drafted ahead of verdicts: after any hits and misses, drafts are those of a new sequence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.llama.drafter import LlamaDrafter
from testbed.ue.pace import REAL_TIME
from testbed.ue.session_drafter import WindowDrafter
from testbed.ue.windows.fixed import FixedWindow
from tests.support.models import TOKENS

PROMPT = [7, 25, 3, 3, 19]
ROOM = 1000
VERDICTS = st.lists(st.none() | st.tuples(st.integers(0, 6), st.integers(0, 60)), min_size=3, max_size=12)
"""None: all is accepted and the guess is right; else the number of accepted tokens, and the token after them."""


def fresh(drafter: Drafter, prefix: list[int], count: int) -> list[int]:
    sequence = drafter.open(prefix)
    try:
        return [sequence.draft_one().id for _ in range(count)]
    finally:
        sequence.close()


async def check(drafter: Drafter, window: int, verdicts: Sequence[tuple[int, int] | None]) -> None:
    windows, committed, ahead = WindowDrafter(drafter, FixedWindow(window), None, REAL_TIME, 16), list(PROMPT), None
    windows.begin(list(PROMPT))
    for verdict in verdicts:
        if ahead is None:
            await windows.catch_up(ids_of(committed))
            ahead = await windows.draft(0, ROOM, frozenset())
        away = ahead.ids.tolist()
        assert away == fresh(drafter, committed, window)
        drafted = await windows.draft_ahead(ahead, ROOM, frozenset())
        assert drafted is not None and windows.guess is not None and windows.drafted_ahead == window + 1
        assert [*away, windows.guess, *drafted.ids.tolist()] == fresh(drafter, committed, 2 * window + 1)
        if verdict is None:
            committed += [*away, windows.guess]
            windows.advance(window)
            ahead = drafted
        else:
            accepted = min(verdict[0], window)
            committed += [*away[:accepted], verdict[1]]
            windows.commit(accepted, verdict[1])
            ahead = None
    windows.close()


def ids_of(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


@settings(max_examples=40, deadline=None)
@given(window=st.integers(1, 6), verdicts=VERDICTS)
def test_drafts_are_those_of_a_new_sequence(window: int, verdicts: list[tuple[int, int] | None]) -> None:
    asyncio.run(check(SyntheticDrafter(vocab_size=64, alpha=0.7), window, verdicts))


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_the_cache_of_llama_cpp_is_rolled_back_to_any_position(random_ggufs: dict[str, Path], kind: str) -> None:
    drafter = LlamaDrafter(random_ggufs[kind], TOKENS, kv_type="f32", flash_attention=False, threads=1)
    verdicts = [None, None, (2, 9), (0, 4), None, (3, 1), None, None, None, (1, 50), (4, 8), None, (0, 0)]
    try:
        asyncio.run(check(drafter, 4, verdicts))
    finally:
        drafter.close()


async def test_nothing_is_drafted_after_the_end_of_an_output() -> None:
    drafter = SyntheticDrafter(vocab_size=64, alpha=1.0)
    first, *_, last, guess = fresh(drafter, PROMPT, 5)
    windows = WindowDrafter(drafter, FixedWindow(4), None, REAL_TIME, 16)
    windows.begin(list(PROMPT))
    await windows.catch_up(ids_of(PROMPT))
    away = await windows.draft(0, ROOM, frozenset())
    assert away.ids[0] == first
    for room, ends in ((0, frozenset[int]()), (ROOM, frozenset([last])), (ROOM, frozenset([guess]))):
        assert await windows.draft_ahead(away, room, ends) is None
        windows.commit(0, first)
        await windows.catch_up(ids_of([*PROMPT, first]))
        windows.begin(list(PROMPT))
        await windows.catch_up(ids_of(PROMPT))
        away = await windows.draft(0, ROOM, frozenset())
