"""Scorers by name, and user-defined scorers."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.experiments.inputs.scorers import scorer
from tests.support.refusals import refuse


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(
        "LIMIT = 3\n"
        "def last_word(text):\n    return text.split()[-1].lower() if text.split() else None\n"
        "def words(text):\n    return text.split()\n"
        "def fails(text):\n    raise KeyError('two\\nlines')\n"
    )
    return path


def test_those_by_name() -> None:
    number, exact = scorer("number"), scorer("exact")
    assert number("so 3*4=12\n#### 12") == number("that is twelve #### 12.0") == "12"
    assert number("no answer") is None
    assert exact("12") == "12" and exact("12") != exact("12 ")


def test_a_users_own(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scorer(f"{mine}:last_word")
    assert found("It is GREEN") == found("green") == "green" and found("") is None
    monkeypatch.setattr(sys, "path", [str(mine.parent), *sys.path])
    assert scorer("mine:last_word")("It is GREEN") == "green"
    assert scorer("os.path:basename")("a/b") == "b"


def test_refusals(mine: Path) -> None:
    refuse(lambda: scorer("bleu"), BadInput, "'bleu'", "number, exact, choice, package.module:function")
    refuse(lambda: scorer("no.such:thing"), BadInput, "no.such", "ModuleNotFoundError")
    refuse(lambda: scorer("nowhere.py:thing"), BadInput, "nowhere.py", "FileNotFoundError")
    refuse(lambda: scorer(f"{mine}:other"), BadInput, "no function other")
    refuse(lambda: scorer(f"{mine}:LIMIT"), BadInput, "no function LIMIT")
    refuse(lambda: scorer(f"{mine}:words")("a b"), BadInput, "unhashable")
    with pytest.raises(BadInput, match="KeyError"):
        scorer(f"{mine}:fails")("a b")
    mine.write_text("def broken(:\n")
    refuse(lambda: scorer(f"{mine}:broken"), BadInput, "SyntaxError")


def test_a_choice_is_found_in_time_proportional_to_the_text() -> None:
    began_s = time.process_time()
    assert scorer("choice")(f"The answer{' ' * 30_000}") is None
    assert scorer("choice")(f"The answer is{' ' * 20}:{' ' * 20}(C)") == "C"
    assert time.process_time() - began_s < 2.0  # with quadratic time, more than ten
