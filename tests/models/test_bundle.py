"""Bundled pair in the package: files, sizes, and the requirements of the model card."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.bs.engines.target import describe
from testbed.errors import ModelError
from testbed.models.bundle import DATA, bundled, bundled_target
from testbed.models.card import measure, render, shortfalls
from testbed.models.real.parity import text_ids
from testbed.protocols.vocabulary import BESIDE_GGUF, fingerprint

WORDS = json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}})
"""A tokenizer without an end token."""


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    return measure(DATA, problems=50, judged=12, say=lambda line: None)


def test_all_parts_are_there_and_small() -> None:
    bundle = bundled()
    assert bundle.drafter and bundle.target and bundle.tokenizer and bundle.drafter_hf
    assert sum(f.stat().st_size for f in DATA.rglob("*") if f.is_file()) <= 25 * 2**20
    assert fingerprint(bundle.target) == fingerprint(bundle.drafter_hf)
    for directory in (bundle.target, bundle.drafter_hf):
        assert json.loads((directory / "config.json").read_text())["max_position_embeddings"] >= 2560


def test_the_target_becomes_gguf_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A llama engine describes it as the directory is described, so that UEs take it for the same vocabulary."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = bundled_target(gguf=True)
    assert path.is_relative_to(tmp_path) and len(list(path.parent.iterdir())) == 4
    assert replace(describe(str(path)), path=bundled_target()) == describe(str(bundled_target()))
    written_ns = path.stat().st_mtime_ns
    assert bundled_target(gguf=True) == path and path.stat().st_mtime_ns == written_ns


def test_the_pair_meets_the_requirements_of_the_card(facts: dict[str, Any]) -> None:
    """The card's requirements on fewer problems, with wider limits for the accuracies."""
    assert facts["target_accuracy"] >= 0.80
    assert 0.15 <= facts["drafter_accuracy"] <= 0.75
    about_accuracy = ("target accuracy", "drafter accuracy")
    assert [line for line in shortfalls(facts) if not line.startswith(about_accuracy)] == []


def test_the_oracle_judge_changes_no_answer(facts: dict[str, Any]) -> None:
    assert facts["oracle"]["accuracy"] == facts["greedy"]["accuracy"] == facts["target_accuracy_judged"]


def test_the_card_contains_the_measured_values(facts: dict[str, Any]) -> None:
    card = render(facts)
    assert f"{facts['target_parameters']:,}" in card
    assert f"{facts['oracle']['aal']:.2f}" in card


def test_shortfalls_name_what_is_missing(facts: dict[str, Any]) -> None:
    worse = {**facts, "target_accuracy": 0.5, "answer_tokens": 10, "oracle": facts["greedy"]}
    assert len(shortfalls(worse)) >= 3


def test_judged_problems_are_among_the_problems() -> None:
    """A card said that 40 problems were judged where there were four."""
    found = measure(DATA, problems=2, judged=9, say=lambda line: None)
    assert (found["problems"], found["judged"]) == (2, 2)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("tokenizer.json", None, "no tokenizer in"),
        ("tokenizer.json", "{", "cannot be read as a tokenizer"),
        ("tokenizer.json", WORDS, r"the tokenizer has no "),
        ("config.json", "[1]", "config.json"),
        ("config.json", '{"model_type": "llama", "hidden_size": "x"}', "config.json|cannot load it"),
        ("generation_config.json", '{"pad_token_id": {}}', "transformers cannot load it"),
    ],
)
def test_a_damaged_pair_is_refused_in_one_line(file: str, content: str | None, said: str, tmp_path: Path) -> None:
    """It left a traceback."""
    shutil.copytree(DATA / "target", tmp_path / "target")
    (tmp_path / "target" / file).unlink()
    if content is not None:
        (tmp_path / "target" / file).write_text(content)
    with pytest.raises(ModelError, match=said) as caught:
        measure(tmp_path, 1, 1, lambda line: None)
    assert "\n" not in str(caught.value)
    if content == "{" and file == "tokenizer.json":
        with pytest.raises(ModelError, match=said):
            text_ids(tmp_path / "target")


def test_two_first_users_of_a_cache_make_the_target_at_the_same_time(tmp_path: Path) -> None:
    """Both wrote to one temporary file: one ended with a traceback, or with a file that llama.cpp could not load."""
    code = "from testbed.models.bundle import bundled_target; print(bundled_target(gguf=True))"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    users = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    said = {user.communicate(timeout=120)[0] for user in users}
    assert [user.returncode for user in users] == [0, 0] and len(said) == 1
    folder = Path(said.pop().strip()).parent
    assert folder.is_relative_to(tmp_path)
    assert {path.name for path in folder.iterdir()} <= {"target.gguf", *BESIDE_GGUF}
