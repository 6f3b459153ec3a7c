"""Data sets of prompts with reference answers: bundled problems, GSM8K-format JSONL files, Hugging Face data sets."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import BadInput
from testbed.models.edits import edits
from testbed.models.problems import SPLITS, generate
from testbed.models.scoring import final_number

BUNDLED = "bundled:"
"""Begin of the names of bundled data sets."""
EDITS = "edit"
"""Name of the edit task among them."""
BUNDLED_SIZE = 500
BUNDLED_SEED = 2026
"""Seed of the bundled calibration and test problems; training uses other seeds and another split."""


class Example(msgspec.Struct, frozen=True):
    """A question and its reference answer; `answer` may contain worked steps before ``#### result``."""

    question: str
    answer: str | None = None

    @property
    def result(self) -> str | None:
        """The reference result, or None; an answer that is a bare number is its own result."""
        return None if self.answer is None else final_number(self.answer) or final_number(f"#### {self.answer.strip()}")


def load_dataset(spec: str, limit: int | None = None) -> list[Example]:
    """Load the examples of a data set.

    Args:
        spec: `bundled:test`, `bundled:calibration`, `bundled:edit`, a JSONL file with `question` (or `prompt`) and
            optionally `answer` on every line, or `hf:NAME[:CONFIG[:SPLIT]]`, which needs the `datasets` library.
        limit: maximum number of examples; None: all.

    Raises:
        BadInput: no such data set, an empty one, or an invalid line.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"the number of prompts must be at least 1, not {limit}")
    if spec.startswith(BUNDLED):
        examples = _bundled(spec.removeprefix(BUNDLED), limit or BUNDLED_SIZE)
    elif spec.startswith("hf:"):
        examples = _hub(spec.removeprefix("hf:"), limit)
    else:
        examples = _jsonl(Path(spec), limit)
    if not examples:
        raise BadInput(f"{spec} has no examples")
    return examples


def _bundled(split: str, count: int) -> list[Example]:
    if split not in (*SPLITS, EDITS):
        known = ", ".join(BUNDLED + name for name in (*SPLITS, EDITS))
        raise BadInput(f"no bundled data set {split!r}; known: {known}")
    return list(_generated(split, count))


@functools.lru_cache(maxsize=8)
def _generated(split: str, count: int) -> tuple[Example, ...]:
    """Cached, since a sweep loads the same examples for every point."""
    if split == EDITS:
        return tuple(Example(*pair) for pair in itertools.islice(edits(BUNDLED_SEED), count))
    return tuple(Example(p.question, p.answer) for p in itertools.islice(generate(split, BUNDLED_SEED), count))


def _jsonl(path: Path, limit: int | None) -> list[Example]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON strings may contain other line separators
    except (OSError, UnicodeDecodeError) as exc:
        raise BadInput(f"cannot read the data set {path}: {exc}; use bundled:test, a JSONL file, or hf:NAME") from exc
    numbered = ((i, line) for i, line in enumerate(lines, 1) if line.strip())
    return [_example(f"{path}:{i}", _parse(path, i, line)) for i, line in itertools.islice(numbered, limit)]


def _parse(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise BadInput(f"{path}:{number} is not JSON: {exc}") from exc


def _example(where: str, row: Any) -> Example:
    question = (row.get("question") or row.get("prompt")) if isinstance(row, dict) else None
    if not isinstance(question, str) or not question.strip():
        raise BadInput(f"{where} has no `question` (or `prompt`)")
    answer = row.get("answer")
    return Example(question, None if answer is None else str(answer))


def _hub(spec: str, limit: int | None) -> list[Example]:
    name, config, split = [*spec.split(":"), "", ""][:3]
    try:
        import datasets
    except ModuleNotFoundError as exc:
        raise BadInput("hf: data sets need the `datasets` library: pip install datasets") from exc
    try:
        rows: Iterable[Any] = datasets.load_dataset(name, config or None, split=split or "test")
    except Exception as exc:  # the library's errors have no common base
        raise BadInput(f"cannot load the data set {name}: {str(exc).splitlines()[0]}") from exc
    return [_example(f"{name}[{i}]", row) for i, row in enumerate(itertools.islice(rows, limit))]
