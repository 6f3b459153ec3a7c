"""The rule without digits, on the bundled tokenizer and on random ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from testbed.bs.judging.base import Candidates
from testbed.bs.judging.token_rule import TokenRuleJudge, digit_free
from testbed.errors import ModelError
from testbed.models.bundle import bundled


def test_texts_of_harmless_tokens_hold_no_digit() -> None:
    target = bundled().require("target")
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    harmless = digit_free(target)
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(len(harmless))]
    assert [any(c.isascii() and c.isdigit() for c in text) for text in texts] == (~harmless).tolist()
    assert 0 < harmless.sum() < len(harmless)


def test_both_tokens_count_and_zero_is_strict() -> None:
    harmless = np.array([True, True, False, False])
    drafted, wanted = np.array([0, 0, 2, 3]), np.array([1, 2, 1, 2])
    judge = TokenRuleJudge(harmless)
    nothing = np.zeros((4, 1), np.float16)
    windows = [Candidates(drafted, wanted, nothing, None, None, threshold) for threshold in (0.0, 0.01, 1.0)]
    kept = [k.tolist() for k in judge.judge(windows)]
    assert kept == [[False] * 4, [True, False, False, False], [True, False, False, False]]
    assert not judge.needs_hidden(1.0)


def test_a_target_without_texts(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        digit_free(tmp_path)
