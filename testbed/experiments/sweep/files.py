"""Bundled sweep files, which reproduce tables and figures of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from testbed import bundled_files
from testbed.errors import BadInput

CAPACITY = "capacity"
"""Folder of files for `testbed capacity --config`."""


class SweepFile(NamedTuple):
    """A bundled sweep file."""

    name: str
    path: Path
    about: str
    """Its leading comment as one paragraph, without command lines."""
    command: str
    """Command to run it."""


def sweep_files() -> list[SweepFile]:
    """All bundled sweep files by name; those in a subfolder are named `folder/name`."""
    folder = bundled_files.folder("sweeps")
    return [_described(path, folder) for path in sorted(folder.rglob("*.yaml"))]


def find_sweep(name: Path) -> Path:
    """Path of a sweep file, given as a file or by the name of a bundled one.

    Raises:
        BadInput: no such file, or a file for another command.
    """
    if str(name).startswith(f"{CAPACITY}/") and (bundled_files.folder("sweeps") / f"{name}.yaml").is_file():
        raise BadInput(f"{name} is a capacity study; run testbed capacity --config {name}")
    return bundled_files.find("sweeps", str(name))


def _described(path: Path, folder: Path) -> SweepFile:
    name = path.relative_to(folder).with_suffix("").as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = []
    for line in lines:
        if not line.startswith("#"):
            break
        if not (text := line.lstrip("#").strip()).startswith("testbed "):
            comment.append(text)
    command = f"testbed capacity --config {path}" if name.startswith(f"{CAPACITY}/") else f"testbed sweep {name}"
    return SweepFile(name, path, " ".join(comment), command)
