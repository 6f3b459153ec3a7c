"""Atomic file writes, and exclusive locks on folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import BadInput, TestbedError

MISTAKEN = {errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
"""Error numbers that mean a wrong path, not a failing disk."""
LOCK = ".lock"
"""Name of the lock file in a locked folder."""


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which replaces `path` on success: readers never see a partial file.

    Raises:
        BadInput: `path` is not writable.
        TestbedError: writing failed, for example on a full disk; the old file is kept.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        part.replace(path)
    except OSError as exc:
        reason = os.strerror(exc.errno) if exc.errno else exc  # messages of libraries vary
        kind = BadInput if exc.errno in MISTAKEN else TestbedError
        raise kind(f"cannot write {path}: {reason}") from exc
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def held(folder: Path, taken: str) -> Iterator[None]:
    """Lock a folder, created if missing, for this process; the lock ends with the process.

    Args:
        taken: error message if another process holds the lock.

    Raises:
        BadInput: the folder cannot be created or written to, or another process holds it.
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
