"""Marks of outputs by every scorer, and answers that cannot be read beside wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.marks import Mark, check_builtin, check_references, marker
from testbed.experiments.inputs.scorers import scorer
from testbed.experiments.results.quality import quality
from tests.support.refusals import refuse

TASKS = Path(__file__).parent / "tasks"
RIGHT, WRONG, UNREAD = Mark(True, True), Mark(True, False), Mark(False, False)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        (" (C)", "C"),
        ("D. Paris, since it is the capital", "D"),
        ("**A**", "A"),
        ("The answer is (B).", "B"),
        ("Answer: C", "C"),
        ("ANSWER IS D", "D"),
        ("the correct answer is **B**: iron", "B"),
        ("Option A is wrong; the answer is B", "B"),
        (r"so \boxed{E}", "E"),
        (r"\boxed{(F)}", "F"),
        ("A drafter is a small model", None),
        ("I'd say Paris", None),
        ("Answer: Berlin", None),
        ("the answer is a number", None),
        ("Answer: I don't know", None),
        ("Answer: I think it is B", None),
        ("Answer: I", "I"),
        ("Answer: A or B", None),
        ("Answer: (A) or (B)", None),
        ("Answer: A because it floats", "A"),
        ("Answer: A dog", None),
        ("(b)", "B"),
        ("b", "B"),
        ("The answer is b", "B"),
        ("The answer is **c**.", "C"),
        ("K", None),
        ("", None),
    ],
)
def test_the_letter_of_a_choice(text: str, letter: str | None) -> None:
    assert scorer("choice")(text) == letter


def test_choice() -> None:
    mark, example = marker("choice"), Example("Which?", "(B) iron")
    assert [mark(example, text, None) for text in ("Answer: B", "C", "iron")] == [RIGHT, WRONG, UNREAD]
    assert mark(Example("Which?"), "B", None) is None


def test_scorers_that_nothing_can_be_judged_by(caplog: pytest.LogCaptureFixture) -> None:
    refuse(lambda: check_references("code", [Example("a", "#### 1")]), BadInput, "test", "HumanEval")
    check_references("choice", [Example("a", "(B)"), Example("b", "2"), Example("c")])
    assert "no answer in 1 of 2 reference answers, the first '2'" in caplog.text
    caplog.clear()
    check_references("number", [Example("a", "a text"), Example("b")])
    check_references("agreement:choice", [Example("a", "2")])
    assert not caplog.text


def test_agreement_is_with_the_targets_own_answer() -> None:
    example = Example("How many?", "#### 3")
    whole, number = marker("agreement"), marker("agreement:number")
    assert [whole(example, text, "so #### 4") for text in ("so #### 4", "#### 4")] == [RIGHT, WRONG]
    assert [number(example, text, "so #### 4") for text in ("#### 4.0", "#### 3", "?")] == [RIGHT, WRONG, UNREAD]
    assert number(example, "#### 3", None) is None and number(example, "#### 3", "cut off") is None


def test_agreement_loses_against_the_target_what_it_does_not_share() -> None:
    texts, own = {0: "#### 1", 1: "#### 2", 2: "?"}, {0: "#### 1", 1: "#### 3", 2: "#### 4"}
    found = quality(texts, [Example("a"), Example("b"), Example("c")], own, marker("agreement:number"))
    assert (found["accuracy"], found["unparsed"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert found["accuracy_lost"] == pytest.approx(2 / 3)


def test_code() -> None:
    mark, (double, _) = marker("code", run_code=True), load_dataset(str(TASKS / "human_eval.jsonl"))
    outputs = [str(double.answer), "    return x + x + 1\n", "Twice x is x + x, of course"]
    assert [mark(double, text, None) for text in outputs] == [RIGHT, WRONG, UNREAD]
    assert mark(Example("no program"), "    return 1", None) is None


def test_programs_run_only_where_they_may() -> None:
    refuse(lambda: marker("code"), BadInput, "--run-code")
    refuse(lambda: marker("agreement:bleu"), BadInput, "'bleu'")
    refuse(lambda: scorer("code"), BadInput, "unknown scorer 'code'")


@pytest.mark.parametrize("name", ["number", "exact", "choice", "agreement", "agreement:choice"])
def test_scorers_that_a_directory_may_name(name: str) -> None:
    check_builtin(name, "here", "there")


@pytest.mark.parametrize("name", ["code", "mine.py:score", "os:system", "agreement:mine.py:score", "agreement:code"])
def test_code_is_never_named_by_a_directory(name: str) -> None:
    refuse(lambda: check_builtin(name, "runs/x", "give --own-scorer"), BadInput, repr(name), "give --own-scorer")
