"""Completions in few passes equal token-by-token decoding, whatever similar text is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.registry import load_engine
from testbed.experiments.lockstep.completions import Completer, Paths
from testbed.experiments.lockstep.decoding import Lockstep
from tests.support.models import TOKENS
from tests.support.reference import Reference
from tests.support.synthetic import ENDS, VOCAB, engine, greedy

IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


def complete(ids: list[int], room: int, like: list[int], ends: frozenset[int] = ENDS) -> tuple[list[int], int]:
    """A completion and its number of passes."""
    lockstep = Lockstep(engine(), 1)
    ((_, found),) = lockstep.run([Completer(ends).complete("s", ids, room, like)])
    return found, lockstep.passes


@given(IDS, st.integers(0, 60), st.data())
def test_the_text_that_is_followed_changes_nothing(ids: list[int], room: int, data: st.DataObject) -> None:
    """Any text: unrelated, a copy with tokens removed, inserted and changed, or one that is longer."""
    own = greedy(ids, room)
    like = ids + own
    for place in data.draw(st.lists(st.integers(0, len(like)), max_size=4)):
        kind = data.draw(st.sampled_from(["drop", "put", "change"]))
        like = like[:place] + ([] if kind == "drop" else [3]) + like[place + (kind != "put") :]
    like += data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=8))
    assert complete(ids, room, like)[0] == own
    assert complete(ids, room, data.draw(IDS))[0] == own
    assert complete(ids, room, [])[0] == own


def test_a_good_text_saves_passes() -> None:
    ids = [1, 2, 3]
    own = greedy(ids, 120, ())
    shifted = [9, 9, 9, *ids, *own[:40], 5, 6, *own[41:]]  # later by three, and one token said as two
    assert complete(ids, 120, [], frozenset()) == (own, 120)
    assert complete(ids, 120, ids + own, frozenset()) == (own, 5)  # 9 + 17 + 33 + 33 + 28
    found, passes = complete(ids, 120, shifted, frozenset())
    assert found == own and passes <= 10


def test_a_text_that_was_completed_before_saves_passes() -> None:
    lockstep, completer = Lockstep(engine(), 1), Completer(())
    for passes in (50, 54):
        ((_, found),) = lockstep.run([completer.complete("s", [4, 5], 50)])
        assert found == greedy([4, 5], 50, ())
        assert lockstep.passes <= passes


@pytest.mark.parametrize("kind", ["llama", "qwen2-padded"])
def test_against_transformers(kind: str, random_models: dict[str, Path], references: dict[str, Reference]) -> None:
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, TOKENS, size).tolist() for size in rng.integers(1, 40, 12)]
    own = [references[kind].greedy(prompt, 24) for prompt in prompts]
    ends = frozenset({own[0][6], own[1][10]})
    expected = [o[: next((i + 1 for i, t in enumerate(o) if t in ends), len(o))] for o in own]
    assert any(len(e) < 24 for e in expected) and any(len(e) == 24 for e in expected)
    likes = [p + o[:8] + [7] + o[9:] if i % 3 else [] for i, (p, o) in enumerate(zip(prompts, own, strict=True))]
    target = load_engine("transformers", random_models[kind], vocab_size=TOKENS)
    completer = Completer(ends)
    decodings = (completer.complete(f"{i}", p, 24, lk) for i, (p, lk) in enumerate(zip(prompts, likes, strict=True)))
    found = dict(Lockstep(target, 5).run(decodings))
    target.close()
    assert [found[i] for i in range(len(prompts))] == expected


def test_paths_follow_only_what_is_the_targets_own() -> None:
    paths = Paths()
    assert paths.first() == [] and paths.follow([1]) is None
    paths.add(3, [1, 2, 3, 4, 5])
    paths.add(4, [1, 2, 3, 9, 8])
    assert paths.first() == paths.follow([1, 2, 3]) == paths.follow([1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]
    assert paths.follow([1, 2, 3, 9]) == [1, 2, 3, 9, 8]
    assert paths.follow([1, 2]) is None  # what follows 1 2 was given, not said
    assert paths.follow([1, 2, 3, 4, 5, 6]) is None and paths.follow([1, 2, 4]) is None
