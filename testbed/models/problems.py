"""Generator of arithmetic word problems in the format of GSM8K: a question, worked steps, ``#### answer``.

A problem is a chain of two to six events on a running number, worded by templates (`stories`), with distractor
sentences whose numbers are irrelevant. A *narrator* words the worked steps at random: at each choice of words it uses
its favourite with probability `FAVOURITE_P`. The two narrators of the bundled pair share the problems but not all
favourites: a drafter trained on one and a target trained on the other often disagree in words, which is harmless, and
sometimes in digits, which is critical.

Splits are disjoint by construction: a hash of the problem's skeleton (templates and numbers, without names and items)
determines the split.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from testbed.errors import BadInput
from testbed.models import stories
from testbed.models.stories import TEMPLATES, Template

Split = Literal["train", "calibration", "test"]
NarratorName = Literal["target", "drafter"]

SPLITS: dict[str, range] = {"train": range(96), "calibration": range(96, 98), "test": range(98, 100)}
NARRATORS = ("target", "drafter")
FAVOURITE_P = 0.5
HABIT_SHIFT = 0.8
"""Share of choices at which the favourites of the two narrators differ."""
STEP_COUNTS = (2, 3, 3, 4, 4, 4, 5, 5, 6)
OP_WEIGHTS = {"add": 5, "sub": 5, "mul": 4, "div": 4, "rest": 1, "full": 1, "gap": 2, "max": 1, "min": 1}
MAX_NUMBER = 999

_BY_OP: dict[str, tuple[Template, ...]] = {op: tuple(t for t in TEMPLATES if t.op == op) for op in OP_WEIGHTS}


@dataclass(frozen=True)
class ProblemStep:
    """One event: template, running number before (`a`), the event's number (`b`), running number after (`c`)."""

    template: Template
    a: int
    b: int
    c: int


@dataclass(frozen=True)
class WordProblem:
    """A worded problem; `answer` contains the worked steps and the ``#### final`` line."""

    question: str
    answer: str
    final: int
    skeleton: str


def generate(split: str, seed: int, narrator: str = "target") -> Iterator[WordProblem]:
    """Infinite, deterministic sequence of problems of one split.

    Only the wording of the steps depends on the narrator, not the skeletons, names and items.

    Raises:
        BadInput: unknown split or narrator.
    """
    if split not in SPLITS:
        raise BadInput(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    if narrator not in NARRATORS:
        raise BadInput(f"unknown narrator {narrator!r}; known: {', '.join(NARRATORS)}")
    plot = random.Random(f"plot/{split}/{seed}")
    words = random.Random(f"words/{split}/{seed}/{narrator}")
    while True:
        steps = _chain(plot)
        skeleton = _skeleton(steps)
        if split_of(skeleton) == split:
            yield _tell(plot, words, narrator, steps, skeleton)


def drills(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Infinite sequence of single calculations, distributed as in the problems: (prompt, such as 53*9=, result)."""
    signs = {"add": "+", "sub": "-", "mul": "*", "div": "/", "gap": "-"}
    while True:
        for step in _chain(rng):
            op, a, b = step.template.op, step.a, step.b
            if op in ("rest", "full"):
                yield f"{a}/{b} is", f" {a // b} with remainder {a % b}\n"
            elif op in signs:
                high, low = (max(a, b), min(a, b)) if op == "gap" else (a, b)
                yield f"{high}{signs[op]}{low}=", f"{step.c}\n"


def split_of(skeleton: str) -> str:
    """Split of a skeleton."""
    bucket = int.from_bytes(hashlib.sha256(skeleton.encode()).digest()[:4], "big") % 100
    return next(name for name, buckets in SPLITS.items() if bucket in buckets)


def _skeleton(steps: list[ProblemStep]) -> str:
    return f"{steps[0].a}|" + "|".join(f"{s.template.key}:{s.b}" for s in steps)


def _chain(rng: random.Random) -> list[ProblemStep]:
    """Random feasible chain of events; all intermediate numbers lie in 2..MAX_NUMBER."""
    ops, weights = tuple(OP_WEIGHTS), tuple(OP_WEIGHTS.values())
    number = rng.randint(12, 99) if rng.random() < 0.85 else rng.randint(100, 300)
    steps: list[ProblemStep] = []
    wanted = rng.choice(STEP_COUNTS)
    while len(steps) < wanted:
        op = rng.choices(ops, weights)[0]
        operand = _operand(rng, op, number)
        if operand is None:
            continue
        result = apply(op, number, operand)
        steps.append(ProblemStep(rng.choice(_BY_OP[op]), number, operand, result))
        number = result
    return steps


def _operand(rng: random.Random, op: str, a: int) -> int | None:
    """Random number for an event, or None if the running number does not allow the operation."""
    two_or_three = rng.randint(11, 99) if rng.random() < 0.9 else rng.randint(100, 250)
    if op == "add":
        return two_or_three if a + two_or_three <= MAX_NUMBER else None
    if op == "sub":
        return rng.randint(max(2, a // 8), min(a - 3, 199)) if a >= 20 else None
    if op == "mul":
        return rng.randint(2, 9) if a <= 99 else None
    if op == "div":
        divisors = [d for d in range(2, 10) if a % d == 0 and a // d >= 2]
        return rng.choice(divisors) if divisors and a <= 891 else None
    if op in ("rest", "full"):
        wanted = [d for d in range(3, 10) if a % d >= 2 and a // d >= 2]
        return rng.choice(wanted) if wanted and a <= 99 else None
    if op in ("gap", "max", "min"):
        return two_or_three if a >= 11 and abs(a - two_or_three) >= 2 else None
    raise AssertionError(op)


def apply(op: str, a: int, b: int) -> int:
    """Running number after an event of kind `op` with number `b` on the running number `a`."""
    results = {
        "add": a + b, "sub": a - b, "mul": a * b, "div": a // b, "rest": a % b, "full": a // b,
        "gap": abs(a - b), "max": max(a, b), "min": min(a, b),
    }  # fmt: skip
    return results[op]


def _tell(
    plot: random.Random, words: random.Random, narrator: str, steps: list[ProblemStep], skeleton: str
) -> WordProblem:
    name, other = plot.sample(stories.NAMES, 2)
    items = plot.choice(stories.ITEMS)
    told = {"name": name, "other": other}
    question = [plot.choice(stories.OPENINGS).format(n=steps[0].a, items=items, **told)]
    lines: list[str] = []
    for index, step in enumerate(steps):
        if plot.random() < 0.12:
            question.append(plot.choice(stories.DISTRACTORS).format(n=plot.randint(11, 99), **told))
        question.append(step.template.text.format(n=step.b, items=items, **told))
        items = step.template.unit or items
        position = "first" if index == 0 else "last" if index == len(steps) - 1 else "middle"
        lines.append(_work(words, narrator, step, position, name, items))
    final = steps[-1].c
    question.append(plot.choice(stories.QUESTIONS).format(items=items, **told))
    ending = _choose(words, narrator, f"ending/{steps[-1].template.key}", stories.ENDINGS)
    lines.append(ending.format(c=final, items=items))
    return WordProblem(" ".join(question), " ".join(lines) + f"\n#### {final}", final, skeleton)


def _work(words: random.Random, narrator: str, step: ProblemStep, position: str, name: str, items: str) -> str:
    """Word one step: connector, body and tail."""
    key = step.template.key
    connector = _choose(words, narrator, f"connector/{position}/{key}", stories.CONNECTORS[position])
    body = _choose(words, narrator, f"body/{position}/{key}", stories.STEPS[step.template.op])
    tail = _choose(words, narrator, f"tail/{position}/{key}", stories.TAILS)
    numbers = {
        "a": step.a, "b": step.b, "c": step.c, "q": step.a // step.b, "r": step.a % step.b,
        "hi": max(step.a, step.b), "lo": min(step.a, step.b),
    }  # fmt: skip
    return f"{connector}, {body.format(name=name, items=items, **numbers)}{tail}"


def _choose(words: random.Random, narrator: str, context: str, options: tuple[str, ...]) -> str:
    if words.random() < FAVOURITE_P:
        return options[favourite(narrator, context, len(options))]
    return words.choice(options)


@cache
def favourite(narrator: str, context: str, options: int) -> int:
    """Index of the narrator's favourite among `options` wordings at a choice named by `context`."""
    own = _hash(f"favourite/{context}") % options
    if narrator == "drafter" and _hash(f"differs/{context}") % 1000 < HABIT_SHIFT * 1000:
        return (own + 1 + _hash(f"other/{context}") % (options - 1)) % options
    return own


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
