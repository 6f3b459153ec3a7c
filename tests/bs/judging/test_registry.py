"""Judges by kind: what goes together, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.assets.fingerprints import model_fingerprint
from testbed.bs.judging.base import StrictJudge
from testbed.bs.judging.head import BudgetJudge, HeadJudge, TableJudge
from testbed.bs.judging.registry import judge_kind, make_judge
from testbed.bs.judging.token_rule import TokenRuleJudge
from testbed.errors import BadInput
from testbed.models.bundle import bundled
from tests.support.heads import head_files
from tests.support.refusals import refuse


def test_without_a_name_the_options_say_which() -> None:
    assert judge_kind(None, None, None) == "strict"
    assert judge_kind(None, "head", None) == "head"
    assert judge_kind(None, "head", 0.01) == judge_kind(None, None, 0.01) == "budget"


@pytest.mark.parametrize(
    ("kind", "head", "budget", "words"),
    [
        ("stern", None, None, "known: strict, digits, head, table, budget"),
        ("strict", "head", None, "judge strict takes no head"),
        ("digits", "head", None, "judge digits takes no head"),
        ("head", "head", 0.1, "judge head has no quality budget"),
        ("budget", "head", None, "needs a quality budget, such as 0.01"),
    ],
)
def test_options_that_do_not_go_together(kind: str, head: str | None, budget: float | None, words: str) -> None:
    refuse(lambda: judge_kind(kind, head, budget), BadInput, words)


def test_each_kind_is_made(tmp_path: Path) -> None:
    target = bundled().require("target")
    head = head_files(tmp_path, target_fingerprint=model_fingerprint(target), thresholds=((1.0, 0.5),))
    made = [
        make_judge(*of, target)
        for of in (
            ("strict", None, None), ("digits", None, None), ("head", head, None), ("table", head, None),
            ("budget", head, 0.1),
        )
    ]  # fmt: skip
    assert [type(judge) for judge in made] == [StrictJudge, TokenRuleJudge, HeadJudge, TableJudge, BudgetJudge]


def test_what_a_base_station_has_not(tmp_path: Path) -> None:
    target = bundled().require("target")
    head = head_files(tmp_path / "synthetic")
    assert isinstance(make_judge("head", head, None, None), HeadJudge)
    refuse(lambda: make_judge("head", None, None, target), BadInput, "--head DIR")
    refuse(lambda: make_judge("digits", None, None, None), BadInput, "without a tokenizer lacks")
    refuse(lambda: make_judge("table", head, None, None), BadInput, "names no thresholds")
    refuse(lambda: make_judge("head", tmp_path, None, target), BadInput, str(tmp_path))


def test_another_targets_head_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    target = bundled().require("target")
    head = head_files(tmp_path, target_fingerprint="0123456789abcdef")
    refuse(lambda: make_judge("head", head, None, target), BadInput, "0123456789abcdef", model_fingerprint(target))
