"""Files that are written whole or not at all, and folders that one process holds."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import BadInput, TestbedError

MISTAKEN = {errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
"""Why a path cannot be written where another one could."""
LOCK = ".lock"
"""In a folder that is held."""


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place in the end: readers see the old file or the new one,
    never half of it.

    Raises:
        BadInput: a path that nothing can be written to.
        TestbedError: it cannot be written, as on a full disk; what was there before stays.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        part.replace(path)
    except OSError as exc:
        reason = os.strerror(exc.errno) if exc.errno else exc  # libraries say more, and not the same
        kind = BadInput if exc.errno in MISTAKEN else TestbedError
        raise kind(f"cannot write {path}: {reason}") from exc
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def held(folder: Path, taken: str) -> Iterator[None]:
    """Have a folder, made where it is not there, for this process alone; the lock goes with the process.

    Raises:
        BadInput: it cannot be made or written to, or another process has it, which `taken` says.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a")
    except OSError as exc:
        raise BadInput(f"cannot write to {folder}: {exc.strerror or exc}") from exc
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise BadInput(taken) from exc
        yield
