"""Bundled sweep files, which reproduce tables and figures of the papers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

from testbed.assets import bundled_files
from testbed.errors import BadInput


class SweepFile(NamedTuple):
    """A bundled sweep file."""

    name: str
    path: Path
    about: str
    """Leading comment of the file as one paragraph, without command lines."""
    command: str
    """Command to run it."""


def sweep_files() -> list[SweepFile]:
    """All bundled sweep files by name; those of other commands are named `folder/name` and state their command."""
    folder = bundled_files.folder("sweeps")
    return [_described(path, folder) for path in sorted(folder.rglob("*.yaml"))]


def find_sweep(name: Path) -> Path:
    """Path of a sweep file, given as a file or by the name of a bundled one.

    Raises:
        BadInput: no such file, or a file for another command.
    """
    for file in sweep_files():
        if str(name) == file.name and "/" in file.name:
            raise BadInput(f"{name} is not for `testbed sweep`; run {file.command}")
    return bundled_files.find("sweeps", str(name))


def _described(path: Path, folder: Path) -> SweepFile:
    name = path.relative_to(folder).with_suffix("").as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = [line.lstrip("#").strip() for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    commands = [line for line in comment if line.startswith("testbed ")]
    command = commands[0].replace(f"sweeps/{name}.yaml", str(path)) if commands else f"testbed sweep {name}"
    return SweepFile(name, path, " ".join(line for line in comment if line not in commands), command)
