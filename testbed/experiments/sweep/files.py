"""Sweep files that come along: those of the papers' tables and figures, and what each is for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from testbed import bundled_files
from testbed.errors import BadInput

CAPACITY = "capacity"
"""Folder of those that `testbed capacity --config` takes."""


class SweepFile(NamedTuple):
    """A file that comes along."""

    name: str
    path: Path
    about: str
    """Its leading comment, as one paragraph, without lines that are commands."""
    command: str
    """What runs it."""


def sweep_files() -> list[SweepFile]:
    """All of them, by name; those of a folder below are named `folder/name`."""
    folder = bundled_files.folder("sweeps")
    return [_described(path, folder) for path in sorted(folder.rglob("*.yaml"))]


def find_sweep(name: Path) -> Path:
    """A file, or one that comes along by its name.

    Raises:
        BadInput: neither, or one for another command; the message says which.
    """
    if str(name).startswith(f"{CAPACITY}/") and (bundled_files.folder("sweeps") / f"{name}.yaml").is_file():
        raise BadInput(f"{name} is a study of capacity: testbed capacity --config {name}")
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
