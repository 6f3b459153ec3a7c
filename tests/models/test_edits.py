"""The edit task: deterministic, one name replaced, most of the answer in the prompt."""

from __future__ import annotations

import difflib
import itertools

from testbed.models.edits import edits
from testbed.models.stories import NAMES


def test_the_answer_is_the_text_with_another_name() -> None:
    for question, answer in itertools.islice(edits(3), 200):
        order, text = question.split("\n\n")
        words = order.split()
        old, new = words[1], words[3]
        assert {old, new} <= set(NAMES) and old in text and new not in text
        assert answer == text.replace(old, new) and old not in answer


def test_most_of_the_answer_stands_in_the_prompt() -> None:
    for question, answer in itertools.islice(edits(3), 50):
        blocks = difflib.SequenceMatcher(None, question, answer, autojunk=False).get_matching_blocks()
        assert sum(block.size for block in blocks) > 0.8 * len(answer)


def test_it_depends_on_the_seed_alone() -> None:
    first, again, other = (list(itertools.islice(edits(seed), 20)) for seed in (3, 3, 4))
    assert first == again != other
