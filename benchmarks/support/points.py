"""Values of a sweep's points that its rows leave out."""

from __future__ import annotations

from typing import Any

import msgspec

from testbed.experiments.report.data import RowSource


def value_of(part: RowSource, key: str) -> Any:
    """A column of a row, or `profile`: the device profile of its virtual link."""
    if key != "profile":
        return part.row[key]
    return msgspec.yaml.decode((part.directory / "point.yaml").read_bytes())["channel"]["profile"]
