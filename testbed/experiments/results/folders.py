"""Folders that others may have made: refused where their files lead elsewhere, removed however deep they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import BadInput

MOST_DEPTH = 32
"""Largest depth of folders within a directory of results."""
CREATED = (stat.S_IFDIR, stat.S_IFREG, stat.S_IFSOCK)
"""Kinds of files that a run may leave: folders, files, and sockets of processes that were killed."""


def refuse_links(folder: Path) -> None:
    """Refuse a folder with links, pipes or devices anywhere in it, so that what is written there stays there. The
    folder itself may be a link; hidden files are not looked at, since commands neither read nor keep any there.

    Raises:
        BadInput: it has one, is nested more than `MOST_DEPTH` deep, or cannot be read.
    """
    try:
        for entry, depth in _entries(folder):
            kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
            if kind == stat.S_IFLNK:
                raise BadInput(f"{entry.path} is a link, which results are not written through: remove it")
            if kind not in CREATED:
                raise BadInput(f"{entry.path} is a pipe or a device: remove it")
            if depth > MOST_DEPTH:
                raise BadInput(f"{folder} has folders nested more than {MOST_DEPTH} deep")
    except OSError as exc:
        raise BadInput(f"cannot read {folder}: {exc.strerror or exc}") from exc


def _entries(folder: Path) -> Iterator[tuple[os.DirEntry[str], int]]:
    """Everything in a folder that is not hidden, with its depth: 1 for the folder's own."""
    left = [(str(folder), 1)]
    while left:
        path, depth = left.pop()
        with os.scandir(path) as found:
            for entry in found:
                if not entry.name.startswith("."):
                    yield entry, depth
                    if entry.is_dir(follow_symlinks=False):
                        left.append((entry.path, depth + 1))


def refuse_link(folder: Path, below: Path) -> None:
    """Refuse a folder that a link leads to, in a directory that may itself be one.

    Raises:
        BadInput: `folder`, or one between it and the directory `below`, is a link.
    """
    for part in (folder, *folder.parents):
        if part == below:
            return
        if part.is_symlink():
            raise BadInput(f"{part} is a link; choose another --out, or remove it")
