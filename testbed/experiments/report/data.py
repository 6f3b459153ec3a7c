"""What a report is made of: directories of runs and sweeps, of this version or an older one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.results import directory as results
from testbed.experiments.results.files import REQUESTS, ROUNDS, read_requests, read_rounds
from testbed.models.scoring import final_number

Row = Mapping[str, Any]
POINTS = "points"


@dataclass(eq=False)
class RowSource:
    """A row of a run, and the files that it was made from."""

    row: Row
    directory: Path

    @property
    def name(self) -> str:
        """Its series in a sweep, else its method."""
        return str(self.row.get("series") or self.row["method"])

    @cached_property
    def rounds(self) -> dict[str, NDArray[Any]] | None:
        """Columns of its rounds [n]; None: the run wrote none."""
        return _columns(self.directory / ROUNDS, read_rounds, str(self.row["method"]))

    @cached_property
    def requests(self) -> dict[str, NDArray[Any]] | None:
        """Columns of its requests [n], by request; None: the run wrote none."""
        found = _columns(self.directory / REQUESTS, read_requests, str(self.row["method"]))
        if found is None:
            return None
        order = np.argsort(found["request"], kind="stable")
        return {name: values[order] for name, values in found.items()}

    def right(self, dataset: str | None) -> NDArray[np.float64] | None:
        """1 where an output's answer is right [n]; None where it cannot be told."""
        found = self.requests
        if found is None or dataset is None or not len(found["request"]):
            return None
        try:
            examples = load_dataset(dataset, int(found["request"].max()) + 1)
        except BadInput:
            return None
        pairs = [(text, examples[i]) for text, i in zip(found["text"], found["request"], strict=True)]
        if any(text is None or example.result is None for text, example in pairs):
            return None
        return np.array([final_number(text) == example.result for text, example in pairs], np.float64)


@dataclass(eq=False)
class Shown:
    """A directory in a report."""

    path: Path
    label: str
    document: Mapping[str, Any]
    parts: list[RowSource]
    missing: int = 0
    """Points of a sweep that have not run yet."""

    @property
    def rows(self) -> list[Row]:
        """Its rows."""
        return [part.row for part in self.parts]

    @property
    def config(self) -> Mapping[str, Any]:
        """What ran: of a sweep, what its points share."""
        config: Mapping[str, Any] = self.document["config"]
        inner = config.get("run")
        return inner if isinstance(inner, Mapping) else config

    @property
    def speculates(self) -> bool:
        """Whether its rows are of methods; else it is a study of another kind."""
        return bool(self.parts) and all("method" in row and "latency_s" in row for row in self.rows)


def load_shown(paths: Sequence[Path]) -> list[Shown]:
    """Read run directories and sweeps that have ended, each with a label of its own.

    Raises:
        BadInput: one that holds no run.
    """
    return [shown_of(path, label) for path, label in labels(paths)]


def labels(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """Every path with a name that no other has."""
    return [(path, f"{i}-{path.resolve().name}") for i, path in enumerate(paths, 1)]


def shown_of(path: Path, label: str) -> Shown:
    """A directory that holds a `summary.json`."""
    document = results.read_summary(path)
    folders = [path / POINTS / str(row["point"]) if row.get("point") else path for row in document["rows"]]
    parts = [RowSource(row, folder) for row, folder in zip(document["rows"], folders, strict=True)]
    return Shown(path, label, document, parts)


def _columns(path: Path, read: Any, method: str) -> dict[str, NDArray[Any]] | None:
    if not path.exists():
        return None
    table = read(path.parent)
    mine = np.array(table["method"].to_pylist(), object) == method
    return {name: _array(table[name].to_pylist())[mine] for name in table.column_names if name != "token_ids"}


def _array(values: list[Any]) -> NDArray[Any]:
    """Numbers as float64 with nan for null; anything else, and what is null throughout, as objects."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, int) for value in known) and len(known) == len(values):
        return np.array(values)
    if known and all(isinstance(value, int | float) for value in known):
        return np.array([np.nan if value is None else value for value in values], np.float64)
    found = np.empty(len(values), object)
    found[:] = values
    return found
