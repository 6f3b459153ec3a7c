"""Marks: whether an output has an answer, and whether it is right, by the scorer that a run names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.sandbox import passes, program_of
from testbed.experiments.inputs.scorers import AGREEMENT, SCORERS, Scorer, answer_scorer, expected

LOG = logging.getLogger(__name__)
CODE, DEFAULT = "code", "number"


class Mark(NamedTuple):
    """What a scorer says of an output."""

    parsed: bool
    """Whether it has an answer."""
    right: bool


Marker = Callable[[Example, str, str | None], Mark | None]
"""Marks an output of an example, given the target's own output if it is known. None: nothing to compare with."""


def marker(name: str, run_code: bool = False) -> Marker:
    """The marks of a scorer by name: those of `scorer`; `agreement`, with the target's own output, or `agreement:NAME`,
    with its answer by that scorer; `code`, a program that passes the example's test.

    Args:
        run_code: whether programs that a model wrote may run here.

    Raises:
        BadInput: no such scorer, or `code` although programs may not run.
    """
    if name == CODE:
        if not run_code:
            raise BadInput(
                "scorer code runs programs that the model wrote, with limits but not safely: give --run-code"
            )
        return _code
    score, agreement = answer_scorer(name)
    return _agreement(score) if agreement else by_answer(score)


def check_references(name: str, examples: Sequence[Example]) -> None:
    """Refuse scorer `code` where no example has a test; warn of reference answers that a scorer cannot read.

    Raises:
        BadInput: no tests, or a user's scorer failed.
    """
    if name == CODE:
        if not any(example.program for example in examples):
            raise BadInput("scorer code needs prompts with a test, as HumanEval's are, and this data set has none")
        return
    score, agreement = answer_scorer(name)
    if agreement:
        return
    given = [example for example in examples if example.answer is not None]
    unread = [example for example in given if expected(example, score) is None]
    if unread and (len(unread) < len(given) or name != DEFAULT):
        LOG.warning(
            "scorer %s finds no answer in %d of %d reference answers, the first %.40r: outputs for them are not judged",
            name, len(unread), len(given), unread[0].answer,
        )  # fmt: skip


def check_builtin(name: str, where: object, remedy: str) -> None:
    """Refuse a scorer that is not built in: files that come from others must not choose code that runs here.

    Args:
        where: what names it.
        remedy: how its code is run nevertheless.

    Raises:
        BadInput: it is not built in.
    """
    kind, _, answer = name.partition(":")
    if name not in SCORERS and not (kind == AGREEMENT and (not answer or answer in SCORERS)):
        raise BadInput(f"{where} names code as its scorer, {name!r}: read that code, and {remedy}")


def by_answer(score: Scorer) -> Marker:
    """Right is what has the reference answer."""

    def mark(example: Example, text: str, own: str | None) -> Mark | None:
        wanted = expected(example, score)
        if wanted is None:
            return None
        answer = score(text)
        return Mark(answer is not None, answer == wanted)

    return mark


def _agreement(score: Scorer) -> Marker:
    def mark(example: Example, text: str, own: str | None) -> Mark | None:
        wanted = None if own is None else score(own)
        if wanted is None:
            return None
        answer = score(text)
        return Mark(answer is not None, answer == wanted)

    return mark


def _code(example: Example, text: str, own: str | None) -> Mark | None:
    if example.program is None:
        return None
    source = program_of(example, text)
    return Mark(source is not None, source is not None and passes(example, source))
