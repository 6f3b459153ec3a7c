"""Data of a report: directories of runs and sweeps, written by this version or an older one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import BUNDLED, COMPRESSED, load_dataset
from testbed.experiments.inputs.scorers import SCORERS, expected
from testbed.experiments.results import directory as results
from testbed.experiments.results.files import REQUESTS, ROUNDS, read_requests, read_rounds
from testbed.experiments.results.rows import CATEGORIES, UNNAMED, by_category

LOG = logging.getLogger(__name__)
Row = Mapping[str, Any]
POINTS = "points"
MOST_PROMPTS, MOST_WINDOW = 20_000, 2**15 + 1
"""Largest numbers of prompts of a data set, and of tokens of a round."""
MOST_CATEGORIES = 1000
"""Largest number of rows by category in a report."""
MOST_BYTES = 2**28
"""Largest file of prompts."""


@dataclass(eq=False)
class RowSource:
    """A row of a run with its source files."""

    row: Row
    directory: Path

    @property
    def name(self) -> str:
        """The row's series in a sweep, otherwise its method."""
        return str(self.row.get("series") or self.row["method"])

    @cached_property
    def rounds(self) -> dict[str, NDArray[Any]] | None:
        """Columns of its rounds [n]; None: no file of rounds.

        Raises:
            BadInput: windows that no base station takes.
        """
        found = _columns(self.directory / ROUNDS, read_rounds, str(self.row["method"]))
        if found is not None:
            for name in ("drafted", "accepted", "committed"):
                _check_below(found[name], MOST_WINDOW)
        return found

    @cached_property
    def requests(self) -> dict[str, NDArray[Any]] | None:
        """Columns of its requests [n], sorted by request; None: no file of requests.

        Raises:
            BadInput: the row counts others.
        """
        found = _columns(self.directory / REQUESTS, read_requests, str(self.row["method"]))
        if found is None:
            return None
        if (said := self.row.get("requests")) is not None and said != len(found["request"]):
            raise BadInput(
                f"{self.directory}: a row of {said} requests, of which {REQUESTS} has {len(found['request'])}"
            )
        order = np.argsort(found["request"], kind="stable")
        return {name: values[order] for name, values in found.items()}

    @cached_property
    def places(self) -> dict[str, NDArray[np.int64]]:
        """Indices of the requests of each category."""
        found: dict[str, list[int]] = {}
        for i, name in enumerate(self.requests["category"] if self.requests is not None else ()):
            found.setdefault(name or UNNAMED, []).append(i)
        return {name: np.array(some) for name, some in found.items()}

    def _recorded(self) -> NDArray[np.float64] | None:
        """Marks as the run recorded them; None if it did not mark every output."""
        stored = None if self.requests is None else self.requests["right"]
        if stored is None or stored.dtype == object or not np.isfinite(stored).all():
            return None
        return stored.astype(np.float64)

    def right(self, config: Mapping[str, Any]) -> NDArray[np.float64] | None:
        """1 for each correct answer [n], as the run recorded it, or else by data set and scorer of its configuration.
        None if unknown, or if the scorer is not built in: a report runs no code that a directory names.
        """
        if (recorded := self._recorded()) is not None:
            return recorded
        found, dataset, score = self.requests, config.get("dataset"), SCORERS.get(str(config.get("scorer", "number")))
        if found is None or dataset is None or score is None or not len(found["request"]):
            return None
        try:
            _check_below(found["request"], MOST_PROMPTS)
            examples = load_dataset(_local(str(dataset)), int(found["request"].max()) + 1, turns=True)
            wanted = [expected(examples[i], score) for i in found["request"].tolist()]
            texts = found["text"].tolist()
            if None in wanted or None in texts:
                return None
            return np.array([score(text) == want for text, want in zip(texts, wanted, strict=True)], np.float64)
        except BadInput:
            return None


@dataclass(eq=False)
class CategoryRow(RowSource):
    """A row's figures for one category of its prompts. Its requests are taken from the whole row's, so that files are
    read once; rounds are not divided.
    """

    whole: RowSource

    @property
    def rounds(self) -> None:
        """None."""

    @cached_property
    def requests(self) -> dict[str, NDArray[Any]] | None:
        """Columns of the category's requests [n]; None: no file of requests."""
        every = self.whole.requests
        mine = self.whole.places.get(str(self.row["category"]), np.zeros(0, np.int64))
        return None if every is None else {name: values[mine] for name, values in every.items()}

    def right(self, config: Mapping[str, Any]) -> NDArray[np.float64] | None:
        """1 for each correct answer [n] as the run recorded it; None if it did not."""
        return self._recorded()


@dataclass(eq=False)
class Shown:
    """A run directory or sweep in a report."""

    path: Path
    label: str
    document: Mapping[str, Any]
    parts: list[RowSource]
    missing: int = 0
    """Number of unfinished points of a sweep."""

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [part.row for part in self.parts]

    @property
    def config(self) -> Mapping[str, Any]:
        """Configuration of the run; of a sweep, the part shared by its points."""
        config: Mapping[str, Any] = self.document["config"]
        inner = config.get("run")
        return inner if isinstance(inner, Mapping) else config

    @cached_property
    def categories(self) -> list[RowSource]:
        """Rows of each category of prompts, in order of categories; none if they are more than `MOST_CATEGORIES`."""
        count = sum(len(part.row.get(CATEGORIES) or ()) for part in self.parts)
        if count > MOST_CATEGORIES:
            LOG.warning("%s: %d rows by category are more than a report shows (%d)", self.path, count, MOST_CATEGORIES)
            return []
        found: dict[str, list[RowSource]] = {}
        for part in self.parts:
            for row in by_category([part.row]):
                found.setdefault(row["category"], []).append(CategoryRow(row, part.directory, part))
        return [part for some in found.values() for part in some]

    @property
    def speculates(self) -> bool:
        """Whether the rows are of decoding methods; otherwise it is another kind of study."""
        return bool(self.parts) and all("method" in row and "latency_s" in row for row in self.rows)


@contextlib.contextmanager
def readable(paths: Sequence[Path]) -> Iterator[None]:
    """Refuse directories in which values of other types or without their keys are found on the way.

    Raises:
        BadInput: such a value was found.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as exc:
        LOG.debug("a report failed", exc_info=True)
        names = ", ".join(map(str, paths))
        raise BadInput(f"{names}: not results that a report can show ({type(exc).__name__}: {exc})") from exc


def load_shown(paths: Sequence[Path]) -> list[Shown]:
    """Read run directories and finished sweeps, each with a unique label.

    Raises:
        BadInput: not a run directory.
    """
    return [shown_of(path, label) for path, label in labels(paths)]


def labels(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """Every path with a unique label."""
    return [(path, f"{i}-{path.resolve().name}") for i, path in enumerate(paths, 1)]


def shown_of(path: Path, label: str) -> Shown:
    """Read a directory with a `summary.json`."""
    document = results.read_summary(path)
    folders = [_folder(path, row.get("point")) for row in document["rows"]]
    parts = [RowSource(row, folder) for row, folder in zip(document["rows"], folders, strict=True)]
    return Shown(path, label, document, parts)


def _folder(path: Path, point: Any) -> Path:
    """Folder of a row's files: that of its point, by name.

    Raises:
        BadInput: its name leads elsewhere.
    """
    if not point:
        return path
    if not isinstance(point, str) or point != Path(point).name or point == "..":
        raise BadInput(f"{path}: a row's point is no folder in {POINTS}, but {point!r:.80}")
    if (folder := path / POINTS / point).is_symlink():
        raise BadInput(f"{folder} is a link, which may lead anywhere")
    return folder


def _columns(path: Path, read: Any, method: str) -> dict[str, NDArray[Any]] | None:
    if not path.exists():
        return None
    table = read(path.parent)
    mine = np.array(table["method"].to_pylist(), object) == method
    return {name: _array(table[name].to_pylist())[mine] for name in table.column_names if name != "token_ids"}


def _check_below(values: NDArray[Any], most: int) -> None:
    """Refuse numbers that are negative or above `most`, for a report counts up to them.

    Raises:
        BadInput: there are some.
    """
    if values.dtype.kind in "if" and ((values < 0) | (values > most)).any():
        raise BadInput(f"the results have numbers of requests or tokens outside 0..{most}")


def _local(dataset: str) -> str:
    """The name of a data set that a report may read: bundled, or a regular file that is not too large or compressed.

    Raises:
        BadInput: it is none of these: a directory of somebody else's must not choose what is downloaded, never ends or
            fills the memory.
    """
    path = Path(dataset)
    plain = path.suffix not in COMPRESSED and path.is_file() and path.stat().st_size <= MOST_BYTES
    if dataset.startswith(BUNDLED) or plain:
        return dataset
    raise BadInput(f"{dataset} is no data set that a report reads")


def _array(values: list[Any]) -> NDArray[Any]:
    """Numbers as an integer array, or as float64 with nan for null; other values and all-null columns as objects."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, int) for value in known) and len(known) == len(values):
        return np.array(values)
    if known and all(isinstance(value, int | float) for value in known):
        return np.array([np.nan if value is None else value for value in values], np.float64)
    found = np.empty(len(values), object)
    found[:] = values
    return found
