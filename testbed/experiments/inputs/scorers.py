"""Scorers: extract the final answer from an output, to decide whether two outputs agree."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.models.scoring import final_number

Scorer = Callable[[str], Hashable]
"""Maps an output's text to its answer; None: no answer."""


def _whole(text: str) -> str:
    return text


AGREEMENT = "agreement"
"""Scorer that compares with the target's own output, or `agreement:NAME` with its answer by scorer NAME."""
_OPEN = r"[*_(\[]*"
_LETTER = (
    r"([B-HJ]\b(?!['’])|A\b(?!['’]|\s+(?!because\b|since\b|as\b|due\b|is\b)[a-z])|I\b(?!['’]|\s+[a-z])"
    r"|[a-j](?=[)\]*_]|[.,;]?\s*$))"
    rf"(?![*_)\]]*\s*(?:or\b|and\b|[/,&])\s*{_OPEN}[A-Ja-j]\b)"
)
"""A letter that is no word of a sentence, and not one of several; a small one in brackets or at the end of a line."""
SAID = re.compile(
    rf"(?i:answer|choice|option)\b(?:\s+(?i:is))?\s*(?::\s*)?{_OPEN}{_LETTER}|\\boxed\{{\(?([A-J])\)?\}}", re.MULTILINE
)
"""A letter that is said to be the answer."""
ALONE = re.compile(rf"\s*{_OPEN}([A-J])(?:[).:\]*_]|\s*\Z)|\s*{_OPEN}([a-j])(?:\)|[.:]?\s*\Z)")
"""A letter at the begin of a text that a mark follows, or nothing."""


def _choice(text: str) -> str | None:
    """The letter, A to J, that a text gives as its answer: the last one that is said to be it, or the first thing."""
    said = [one or boxed for one, boxed in SAID.findall(text)]
    if not said and (alone := ALONE.match(text)):
        said = [alone[1] or alone[2]]
    return said[-1].upper() if said else None


SCORERS: dict[str, Scorer] = {"number": final_number, "exact": _whole, "choice": _choice}
"""`number`: the number after the last ####. `exact`: the whole text. `choice`: the letter of a choice."""


def scorer(name: str) -> Scorer:
    """A scorer by name, or a user's function given as `package.module:function` or `file.py:function`.

    The function takes a text and returns a hashable value; if it fails or returns anything else, calling the scorer
    raises BadInput.

    Raises:
        BadInput: no such scorer, module, file or function.
    """
    if name in SCORERS:
        return SCORERS[name]
    where, colon, function = name.rpartition(":")
    if not (colon and where and function):
        known = ", ".join(SCORERS)
        raise BadInput(f"unknown scorer {name!r}; known: {known}, package.module:function or file.py:function")
    found = getattr(_module(where, name), function, None)
    if not callable(found):
        raise BadInput(f"scorer {name}: {where} has no function {function}")
    return _checked(name, found)


def answer_scorer(name: str) -> tuple[Scorer, bool]:
    """A scorer by name, and whether outputs are compared with the target's own by it (`agreement`, `agreement:NAME`)
    rather than with reference answers.

    Raises:
        BadInput: see `scorer`.
    """
    kind, colon, answer = name.partition(":")
    if kind != AGREEMENT:
        return scorer(name), False
    return scorer(answer if colon else "exact"), True


def scorer_file(name: str) -> str | None:
    """The file of a scorer's code; None: it is built in, or its module has no file. Packages around it are imported."""
    name = name.removeprefix(AGREEMENT + ":")
    where = name.rpartition(":")[0]
    if name in SCORERS or not where or where.endswith(".py"):
        return where or None
    try:
        spec = importlib.util.find_spec(where)
    except Exception:  # a user's package may raise anything
        return None
    return spec.origin if spec is not None and spec.has_location else None


def expected(example: Example, score: Scorer) -> Hashable:
    """The answer that an output must have to be right; None: the example has no reference answer.

    A reference that is a bare number counts as one for scorer `number`.

    Raises:
        BadInput: a user's scorer failed.
    """
    if example.answer is None or score is final_number:
        return example.result
    return score(example.answer)


def _module(where: str, name: str) -> Any:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as exc:  # a user's module may raise anything
        raise BadInput(f"scorer {name}: {where} cannot be imported: {type(exc).__name__}: {exc}") from exc
    return module


def _checked(name: str, function: Callable[[str], Any]) -> Scorer:
    def score(text: str) -> Hashable:
        try:
            answer = function(text)
            hash(answer)
        except Exception as exc:
            raise BadInput(f"scorer {name} failed on an output: {type(exc).__name__}: {exc}") from exc
        return answer  # type: ignore[no-any-return]

    return score
