"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.files import whole_file
from tests.support.refusals import refuse


def test_a_file_takes_the_place_of_the_old_one_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with whole_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old" and part.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, FULL), FULL),
        (OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28]"), FULL),
        (OSError("something else"), "something else"),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_the_old_one(error: OSError, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write() -> None:
        with whole_file(path) as part:
            part.write_text("half of it")
            raise error

    refuse(write, TestbedError, f"cannot write {path}: {said}")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_other_errors_are_not_the_disk_s(tmp_path: Path) -> None:
    def write() -> None:
        with whole_file(tmp_path / "file") as part:
            part.write_text("half of it")
            raise ValueError("mine")

    refuse(write, ValueError, "mine")
    assert list(tmp_path.iterdir()) == []
