"""Data sets of prompts with reference answers: bundled problems, files of `formats`, the hub's."""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import json
import logging
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from testbed.assets.hub import may_download
from testbed.errors import BadInput
from testbed.experiments.inputs.chat_prompts import chat_prompts
from testbed.experiments.inputs.formats import Example, NoPrompt, examples_of
from testbed.experiments.inputs.parquet_rows import parquet_rows
from testbed.files import MOST_BYTES, regular_bytes
from testbed.models.edits import edits
from testbed.models.problems import SPLITS, generate

LOG = logging.getLogger(__name__)
BUNDLED = "bundled:"
"""Begin of the names of bundled data sets."""
EDITS, CHAT = "edit", "chat"
"""Names of the edit task and of the chat prompts, which have no answers, among them."""
BUNDLED_SIZE = 500
BUNDLED_SEED = 2026
"""Seed of the bundled calibration and test problems; training uses other seeds and another split."""
MOST_LINE, MOST_EXAMPLES = 2**24, 2**20
"""Largest number of characters of a line, and of examples."""
COMPRESSED = (".gz", ".parquet")
"""Ends of the names of files that may be far larger than they look."""


def load_dataset(spec: str, limit: int | None = None, turns: bool = False) -> list[Example]:
    """Load the examples of a data set.

    Args:
        spec: `bundled:test`, `bundled:calibration`, `bundled:edit`, `bundled:chat`, a file in one of the `formats`
            (JSONL or a JSON list, perhaps `.gz`, or `.parquet`), or `hf:NAME[:CONFIG[:SPLIT]]`, which needs the
            `datasets` library. Rows that cannot be a prompt here, such as calls of tools, are left out with a warning.
        limit: maximum number of examples; None: all.
        turns: whether later turns of conversations are examples, too; else the first of each is.

    Raises:
        BadInput: no such data set, an empty one, or an invalid line.
    """
    if limit is not None and not 1 <= limit <= MOST_EXAMPLES:
        raise BadInput(f"the number of prompts must be from 1 to {MOST_EXAMPLES}, not {limit}")
    if spec.startswith(BUNDLED):
        return _bundled(spec.removeprefix(BUNDLED), limit or BUNDLED_SIZE)
    rows = _hub(spec.removeprefix("hf:")) if spec.startswith("hf:") else _file(Path(spec))
    left_out: list[str] = []
    found = (example for example in _examples(rows, left_out) if turns or not example.turn)
    examples = list(itertools.islice(found, limit or MOST_EXAMPLES + 1))
    if not examples:
        raise BadInput(left_out[0] if left_out else f"{spec} has no examples")
    if left_out:
        LOG.warning("%d rows of %s are left out; the first: %s", len(left_out), spec, left_out[0])
    if len(examples) > MOST_EXAMPLES:
        raise BadInput(f"{spec} has more than {MOST_EXAMPLES} examples; give --limit, or a part of it")
    return examples


def _examples(rows: Iterable[tuple[str, Any]], left_out: list[str]) -> Iterator[Example]:
    """The examples of rows with their places; why the others are left out is added to `left_out`."""
    for where, row in rows:
        try:
            yield from examples_of(where, row)
        except NoPrompt as exc:  # noqa: PERF203
            left_out.append(str(exc))


def _bundled(split: str, count: int) -> list[Example]:
    if split not in (*SPLITS, EDITS, CHAT):
        known = ", ".join(BUNDLED + name for name in (*SPLITS, EDITS, CHAT))
        raise BadInput(f"no bundled data set {split!r}; known: {known}")
    return list(_generated(split, count))


@functools.lru_cache(maxsize=8)
def _generated(split: str, count: int) -> tuple[Example, ...]:
    """Cached, since a sweep loads the same examples for every point."""
    if split == CHAT:
        return tuple(Example(text) for text in chat_prompts(BUNDLED_SEED)[:count])
    if split == EDITS:
        return tuple(Example(*pair) for pair in itertools.islice(edits(BUNDLED_SEED), count))
    return tuple(Example(p.question, p.answer) for p in itertools.islice(generate(split, BUNDLED_SEED), count))


def _file(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows of a file with their places, read as far as they are asked for: of parquet, of a list in JSON, or lines."""
    try:
        regular_bytes(path)
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        with _text(path) as file:
            lines = iter(lambda: file.readline(MOST_LINE + 1), "")
            numbered = ((i, line) for i, line in enumerate(lines, 1) if line.strip())
            first = next(numbered, None)
            if first is not None and first[1].lstrip().startswith("[") and _is_list(first[1]):
                yield from _list(path)
                return
            for i, line in itertools.chain([first] if first else [], numbered):
                if len(line) > MOST_LINE:
                    raise BadInput(f"{path}:{i} has more than {MOST_LINE} characters; use JSONL, one row a line")
                yield f"{path}:{i}", _parse(f"{path}:{i}", line)
    except (OSError, EOFError, ValueError, zlib.error) as exc:  # ValueError: no UTF-8, or no possible name of a file
        raise BadInput(f"cannot read the data set {path}: {exc}; use bundled:test, a JSONL file, or hf:NAME") from exc


def _is_list(line: str) -> bool:
    """Whether a file's first line begins a JSON list of rows; lines of JSONL are rows of their own."""
    rest = line.strip()[1:].lstrip()
    return not rest or rest.startswith("{")


def _list(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows of a JSON file that is a list, as ShareGPT's."""
    with _text(path) as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise BadInput(f"{path} has more than {MOST_BYTES} characters; use JSONL, one row a line")
    for i, row in enumerate(_parse(str(path), text)):
        yield f"{path}[{i}]", row


def _text(path: Path) -> TextIO:
    """A file's text, decompressed, without a byte order mark; JSON strings may contain other separators of lines."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="\n")
    return path.open(encoding="utf-8-sig", newline="\n")


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows of a parquet file with their places."""
    with contextlib.closing(parquet_rows(path)) as rows:
        yield from ((f"{path}[{i}]", row) for i, row in enumerate(rows))


def _parse(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadInput(f"{where} is not JSON: {exc}") from exc


def _hub(spec: str) -> Iterator[tuple[str, Any]]:
    """Rows of a data set of the hub with their places."""
    name, config, split = [*spec.split(":"), "", ""][:3]
    if not may_download():
        raise BadInput(
            f"a directory names the data set hf:{name}: only you may choose what is downloaded (--as-configured)"
        )
    try:
        import datasets
    except ModuleNotFoundError as exc:
        raise BadInput("hf: data sets need the `datasets` library: pip install datasets") from exc
    try:
        rows: Iterable[Any] = datasets.load_dataset(name, config or None, split=split or "test")
    except Exception as exc:  # the library's errors have no common base
        raise BadInput(f"cannot load the data set {name}: {str(exc).splitlines()[0]}") from exc
    return ((f"{name}[{i}]", row) for i, row in enumerate(rows))
