"""Tokenizer of the bundled pair: single digits, lossless round trip, agreement with transformers."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from testbed.models.problems import generate
from testbed.models.tokenizer import END, PROMPT, VOCAB_SIZE, save_tokenizer, train_tokenizer
from testbed.protocols.vocabulary import fingerprint

DIGITS = set("0123456789")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(seed=1, problems=150)


def test_no_token_but_a_digit_holds_a_digit(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    assert {token for token in vocabulary if DIGITS & set(token)} == DIGITS
    assert vocabulary.keys() >= set(tokenizer.encode("+-*/=#").tokens)


@given(number=st.integers(0, 10**12), before=st.sampled_from(["", " ", "x", "$", "-", "\n"]))
def test_numbers_are_spelt_digit_by_digit(tokenizer: Tokenizer, number: int, before: str) -> None:
    digits = list(str(number))
    assert tokenizer.encode(f"{before}{number}").tokens[-len(digits) :] == digits


@given(text=st.text(max_size=60) | st.text("Question: 12+3=15.\n#é日\U0001f600", max_size=60))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_problems_come_back_in_few_tokens(tokenizer: Tokenizer) -> None:
    for problem in itertools.islice(generate("calibration", 2), 20):
        text = f"{PROMPT.format(question=problem.question)} {problem.answer}"
        encoding = tokenizer.encode(text)
        assert tokenizer.decode(encoding.ids) == text
        assert len(encoding.ids) < len(text) / 2


def test_the_end_is_one_special_token(tokenizer: Tokenizer) -> None:
    end_id = tokenizer.token_to_id(END)
    assert tokenizer.encode(f"4{END}").ids[-1] == end_id
    assert tokenizer.decode([end_id]) == ""
    assert tokenizer.get_vocab_size() <= VOCAB_SIZE
    assert sorted(tokenizer.get_vocab().values()) == list(range(tokenizer.get_vocab_size()))


def test_a_seed_gives_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(seed=1, problems=150).to_str() == tokenizer.to_str()


def test_saved_files_are_read_alike_by_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(tokenizer, tmp_path / "a", 4096)
    save_tokenizer(tokenizer, tmp_path / "b", 2048)
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "a")
    text = "Question: Ada has 12 eggs .  How many?\nAnswer: we have 12+30=42.\n#### 42"
    ids = tokenizer.encode(text).ids
    assert loaded.encode(text, add_special_tokens=False) == loaded.encode(text) == ids
    assert loaded.decode(ids) == text
    assert loaded.eos_token_id == loaded.pad_token_id == tokenizer.token_to_id(END)
    assert loaded.model_max_length == 4096
