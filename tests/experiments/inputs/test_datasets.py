"""Data sets: JSONL files, the bundled problems, and refused input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.formats import Example
from tests.support.refusals import refuse

NATALIA = {
    "question": "Natalia sold clips to 48 of her friends in April, and then half as many in May. How many in all?",
    "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nAltogether <<48+24=72>>72 clips.\n#### 72",
}


def save(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "problems.jsonl"


def test_gsm8k_lines(file: Path) -> None:
    spec = save(file, NATALIA, {"question": "And?", "answer": "x\n#### 1,234", "id": 7})
    examples = load_dataset(spec)
    assert examples == [
        Example(NATALIA["question"], NATALIA["answer"]),
        Example("And?", "x\n#### 1,234", "7"),
    ]
    assert [e.result for e in examples] == ["72", "1234"]


def test_prompts_without_answers(file: Path) -> None:
    examples = load_dataset(save(file, {"prompt": "Say hello."}, {"question": "Why?", "answer": None}))
    assert [(e.question, e.answer, e.result) for e in examples] == [("Say hello.", None, None), ("Why?", None, None)]


def test_empty_lines_windows_ends_and_no_last_newline(file: Path) -> None:
    file.write_bytes(b'\n{"question": "a"}\r\n  \r\n\r\n{"question": "b"}')
    assert [e.question for e in load_dataset(str(file))] == ["a", "b"]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "é", "日"])
def test_any_character_may_stand_in_a_question(character: str, file: Path) -> None:
    rows = [{"question": f"a{character}b"}, {"question": "c"}]
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    assert [e.question for e in load_dataset(str(file))] == [f"a{character}b", "c"]


def test_a_limit_takes_the_first_and_reads_no_further(file: Path) -> None:
    file.write_text('{"question": "a"}\n\n{"question": "b"}\nrubbish\n')
    assert [e.question for e in load_dataset(str(file), 2)] == ["a", "b"]
    with pytest.raises(BadInput, match=r"problems\.jsonl:4 is not JSON"):
        load_dataset(str(file), 3)


@pytest.mark.parametrize("limit", [0, -1, 2**20 + 1, 10**19])
def test_a_limit_out_of_range_is_refused(limit: int) -> None:
    with pytest.raises(BadInput, match=f"from 1 to 1048576, not {limit}"):
        load_dataset("bundled:test", limit)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{'question': 'a'}", r":3 is not JSON"),
        ('{"question": "a"', r":3 is not JSON"),
        ('{"text": "a"}', r":3 has no `question` \(or `prompt`\)"),
        ('{"question": ""}', r":3 has no `question`"),
        ('{"question": "  "}', r":3 has no `question`"),
        ('{"question": 5}', r":3 has no `question`"),
        ('["a"]', r":3 has no `question`"),
        ("5", r":3 has no `question`"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(line: str, reason: str, file: Path) -> None:
    file.write_text(f'{{"question": "good"}}\n\n{line}\n{{"question": "good"}}\n')
    with pytest.raises(BadInput, match=rf"problems\.jsonl{reason}"):
        load_dataset(str(file))


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_refused(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(BadInput, match="has no examples"):
        load_dataset(str(file))


def test_files_that_cannot_be_read_are_refused(file: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read the data set .*use bundled:test, a JSONL file, or hf:NAME"):
        load_dataset(str(file))
    with pytest.raises(BadInput, match="cannot read"):
        load_dataset(str(file.parent))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="cannot read"):
        load_dataset(str(file))


# ---------------------------------------------------------------- bundled


def test_the_bundled_splits() -> None:
    test, calibration = load_dataset("bundled:test", 40), load_dataset("bundled:calibration", 40)
    assert len(test) == len(calibration) == 40
    assert test == load_dataset("bundled:test", 40)
    assert load_dataset("bundled:test", 5) == test[:5]
    assert not {e.question for e in test} & {e.question for e in calibration}
    for example in test + calibration:
        assert example.question.endswith("?")
        assert example.answer is not None
        assert example.answer.rpartition("#### ")[2] == example.result


def test_an_unknown_split_is_told_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"no bundled data set 'tests'; known: .*bundled:calibration, bundled:test"):
        load_dataset("bundled:tests")


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz", "data.parquet"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    """A results folder that names one held `rerun` for ever."""
    os.mkfifo(tmp_path / name)
    refuse(lambda: load_dataset(str(tmp_path / name)), BadInput, "not a regular file")
