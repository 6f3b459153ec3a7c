"""Generator of an edit task: rewrite a text with one name replaced, so that most of the answer stands in the prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator

from testbed.models.problems import generate
from testbed.models.stories import NAMES

EDIT = "Replace {old} by {new} in this text and write the whole text again:\n\n{text}"


def edits(seed: int) -> Iterator[tuple[str, str]]:
    """Infinite, deterministic sequence of (question, answer): the texts are questions of test problems, of which the
    name that occurs first is replaced by one that does not occur.
    """
    rng = random.Random(f"edits/{seed}")
    for problem in generate("test", seed):
        text = problem.question
        found = sorted((text.index(name), name) for name in NAMES if name in text)
        if not found:
            continue
        old = found[0][1]
        new = rng.choice([name for name in NAMES if name not in text])
        yield EDIT.format(old=old, new=new, text=text), text.replace(old, new)
