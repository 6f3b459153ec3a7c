"""Formats of public tasks and chat logs: files made in each of them, read line by line, and rows that are refused."""

from __future__ import annotations

import gzip
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.assets.hub import no_downloads
from testbed.errors import BadInput
from testbed.experiments.inputs import datasets
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.formats import Example, Program, examples_of, row_of
from testbed.ue.prompts import Turn

TASKS = Path(__file__).parent / "tasks"
FILES = sorted(path.name for path in TASKS.iterdir())


def load(name: str) -> list[Example]:
    return load_dataset(str(TASKS / name), turns=True)


def rows(name: str) -> list[Any]:
    text = (TASKS / name).read_text()
    return json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]


def test_gsm8k() -> None:
    assert [(e.answer, e.result) for e in load("gsm8k.jsonl")] == [
        (row["answer"], result) for row, result in zip(rows("gsm8k.jsonl"), ("42", "1200"), strict=True)
    ]


@pytest.mark.parametrize("name", ["mt_bench.jsonl", "spec_bench.jsonl", "speed_bench.jsonl"])
def test_every_turn_is_a_prompt_with_category_and_name(name: str) -> None:
    expected = [(str(row["question_id"]), row["category"], text) for row in rows(name) for text in row["turns"]]
    assert [(e.id, e.category, e.question) for e in load(name)] == expected
    for e in load(name):
        assert [one.role for one in e.before] == ["user"] * e.turn
        assert e.unanswered == tuple(range(e.turn))


def test_each_turn_has_its_reference() -> None:
    assert [e.answer for e in load("mt_bench.jsonl")] == [None, None, "144", "100"]
    hub = load("mt_bench_hub.jsonl")
    assert [(e.id, e.answer, e.turn) for e in hub] == [("77", "15", 0), ("77", "30", 1)]
    assert [e.result for e in load("spec_bench.jsonl")] == ["36", None, None, None, None]


def test_human_eval() -> None:
    first, _ = load("human_eval.jsonl")
    row = rows("human_eval.jsonl")[0]
    assert (first.id, first.question, first.answer) == ("Made/0", row["prompt"], row["canonical_solution"])
    assert first.program == Program("double", row["test"])


def test_chat_logs_have_the_logs_answers_before_later_prompts() -> None:
    first, second, hello = load("openai.jsonl")
    assert (first.question, first.answer) == ("What is a drafter?", "A small model that proposes tokens.")
    assert first.before == (Turn("system", "Be brief."),) and first.unanswered == second.unanswered == ()
    assert second.before[1:] == (Turn("user", first.question), Turn("assistant", str(first.answer)))
    assert (second.question, second.turn, second.answer) == ("And a target?", 1, "The model that verifies them.")
    assert (hello.question, hello.before, hello.answer) == ("Hello", (), None)


def test_share_gpt_is_a_list_and_turns_without_an_answer_are_the_models_own() -> None:
    found = load("sharegpt.json")
    assert [(e.id, e.question, e.answer) for e in found] == [
        ("made-1", "Name a river.", "The Elbe."),
        ("made-1", "Another?", "The Oder."),
        ("made-2", "Two.", None),
        ("made-2", "Questions?", None),
    ]
    assert [e.unanswered for e in found] == [(), (), (), (0,)]


@pytest.mark.parametrize("name", FILES)
def test_the_first_prompts_can_be_written_as_rows(name: str) -> None:
    def known(example: Example) -> tuple[Any, ...]:
        return (example.question, example.answer, example.id, example.category, example.before, example.program)

    for example in load_dataset(str(TASKS / name)):
        again = next(examples_of("here", json.loads(json.dumps(row_of(example)))))
        assert known(again) == known(example)


def test_examples_of_a_row_share_its_messages() -> None:
    turns = list(examples_of("here", {"turns": [f"turn {i}" for i in range(200)]}))
    log = [{"role": role, "content": str(i)} for i, role in enumerate(("user", "assistant") * 100)]
    for found in (turns, list(examples_of("here", {"messages": log}))):
        assert len({id(e.conversation) for e in found}) == 1
        assert [len(e.before) for e in found] == [e.at for e in found]


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot read the data set"):
        load_dataset("a\0b")


@pytest.mark.parametrize("name", FILES)
def test_without_turns_the_first_prompt_of_each_row_is_read(name: str) -> None:
    assert load_dataset(str(TASKS / name)) == [e for e in load(name) if not e.turn]
    assert load_dataset(str(TASKS / name), 1) == load(name)[:1]


def test_the_hubs_rows_have_the_same_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def of_the_hub(name: str, config: str | None, split: str) -> list[Any]:
        asked.append((name, config, split))
        return rows("spec_bench.jsonl")

    module = types.ModuleType("datasets")
    module.load_dataset = of_the_hub  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert load_dataset("hf:nvidia/SPEED-Bench:qualitative", turns=True) == load("spec_bench.jsonl")
    assert len(load_dataset("hf:a/b::train", 2)) == 2
    with no_downloads(), pytest.raises(BadInput, match="names the data set hf:a/b: only you may choose"):
        load_dataset("hf:a/b")
    assert asked == [("nvidia/SPEED-Bench", "qualitative", "test"), ("a/b", None, "train")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "a", "id": "\ud800"}, r"'\\ud800', which is half of a character"),
        ({"question": "a", "category": "\ud800x"}, "half of a character"),
        ({"question": "\udfffa", "answer": "b"}, "half of a character"),
        ({"question": "a", "answer": "\ud800"}, "half of a character"),
        ({"entry_point": "f", "prompt": "def f(): pass", "test": "x='\ud800'"}, "half of a character"),
        ({"turns": []}, "0 turns"),
        ({"turns": ["a"] * 300}, "300 turns"),
        ({"turns": ["a", 5]}, "no `turns` that is a text"),
        ({"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING X"]}, r"prepare\.py"),
        ({"messages": ["a"]}, "no object"),
        ({"messages": [{"role": "user", "content": "a"}] * 300}, "300 messages"),
        ({"conversations": [{"from": "human"}]}, "no `content`"),
        ({"entry_point": "f", "prompt": "def f(): pass"}, "no `test`"),
        ({"entry_point": "f()", "prompt": "a", "test": "b"}, "no `entry_point` that is a name"),
    ],
)
def test_rows_that_are_refused(row: Any, reason: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": "good"}) + "\n" + json.dumps(row))
    with pytest.raises(BadInput, match=rf"mine\.jsonl:2 .*{reason}"):
        load_dataset(str(tmp_path / "mine.jsonl"), turns=True)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "no message of the user"),
        ({"conversations": []}, "no message of the user"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "no message of the user"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "a"}]}, "'tool'; known: system"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{}]}]}, "calls a tool"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "other than text"),
        ({"messages": [{"role": "user", "content": {"text": "a"}}]}, "no text"),
    ],
)
def test_rows_that_no_prompt_stands_for_are_left_out(
    row: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"prompt": "good"}) + "\n" + json.dumps(row))
    assert [one.question for one in load_dataset(str(path), turns=True)] == ["good"]
    assert re.search(rf"1 rows of .* are left out; the first: .*mine\.jsonl:2 .*{reason}", caplog.text)
    path.write_text(json.dumps(row))
    with pytest.raises(BadInput, match=rf"mine\.jsonl:1 .*{reason}"):
        load_dataset(str(path))


def test_an_answer_without_text_is_the_targets_own() -> None:
    asked = {"role": "user", "content": "a"}
    log = [{"role": "developer", "content": "Be brief."}, asked, {"role": "assistant", "content": None}, asked]
    first, second = examples_of("here", {"messages": log})
    assert first.answer is None and second.unanswered == (0,) and second.before[0].role == "system"


def test_files_as_they_are_published(tmp_path: Path) -> None:
    rows = [{"question": f"How many, {i}?", "answer": f"#### {i}"} for i in range(600)]
    lines = "\n".join(map(json.dumps, rows)).encode()
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + lines)
    (tmp_path / "lines.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "list.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for path in tmp_path.iterdir():
        assert [one.answer for one in load_dataset(str(path))] == [row["answer"] for row in rows], path
        assert len(load_dataset(str(path), 3)) == 3
    for name in ("lines.jsonl.gz", "rows.parquet"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(BadInput, match=f"cannot read .*{name}"):
            load_dataset(str(tmp_path / name))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "question", "prompt", "answer", "turns", "reference", "messages", "conversations", "role", "from", "content",
        "value", "category", "question_id", "entry_point", "test", "type", "text",
    ]), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(JSON)
def test_any_row_gives_prompts_or_one_line(row: Any) -> None:
    try:
        found = list(examples_of("here", row))
    except BadInput as exc:
        said = str(exc)
    else:
        said = "here "
        assert found and [e.turn for e in found] == list(range(len(found)))
        assert all(e.question.strip() and max(e.unanswered, default=-1) < max(1, e.turn) for e in found)
    assert "\n" not in said and said.startswith("here ")


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "MOST_LINE", 100)
    monkeypatch.setattr(datasets, "MOST_EXAMPLES", 3)
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a"}\n' + json.dumps({"prompt": "b" * 100}))
    with pytest.raises(BadInput, match=r"mine\.jsonl:2 has more than 100 characters"):
        load_dataset(str(path))
    path.write_text('{"prompt": "a"}\n' * 4)
    assert len(load_dataset(str(path), 3)) == 3
    with pytest.raises(BadInput, match="more than 3 examples"):
        load_dataset(str(path))
    path.write_text("[\n" * 200_000)
    with pytest.raises(BadInput, match="is not JSON"):
        load_dataset(str(path))
