"""The path of a controller's socket: bound, also where a killed base station left a socket, and removed at the end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import BadInput

LOCK_S, TRY_S = 2.0, 0.01
"""Longest wait for other base stations that bind in the same folder, and time between two tries."""
MOST_PATH_BYTES = 107
"""Longest path of a Unix socket: 108 bytes with the zero at its end (unix(7))."""


@contextlib.contextmanager
def listening_at(path: str) -> Iterator[socket.socket]:
    """A Unix socket of this user alone that listens at a path within the block.

    Raises:
        BadInput: no socket can be there.
    """
    if not path:
        raise BadInput("--controller is empty: give the path of a socket")
    place = Path(path)
    with contextlib.closing(_bound(place)) as listening:
        made = _identity(place)
        try:
            yield listening
        finally:
            with contextlib.suppress(OSError):  # it, or its folder, is gone
                if _identity(place) == made:
                    place.unlink()


def _identity(path: Path) -> tuple[int, int]:
    """Device and inode of what is at a path."""
    found = path.lstat()
    return found.st_dev, found.st_ino


def _bound(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    try:
        os.fchmod(listening.fileno(), 0o600)  # Linux gives this mode to the path; an umask would be that of all threads
        with _alone_in(path.parent):  # until it listens, another base station would take it for a stale one
            _bind(listening, path)
            listening.listen()
    except OSError as exc:
        listening.close()
        raise BadInput(f"no controller can be awaited at {path}: {exc.strerror or exc}") from exc
    return listening


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, unless it cannot be read, or somebody else holds it for long: other users may.

    Raises:
        OSError: there is no such folder.
    """
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a socket can be bound there nevertheless
        yield
        return
    try:
        until_s = time.monotonic() + LOCK_S
        while time.monotonic() < until_s:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(TRY_S)
        yield
    finally:
        os.close(held)


def _bind(listening: socket.socket, path: Path) -> None:
    """Bind to a path, in place of a socket of this user at which nobody listens.

    Raises:
        OSError: it cannot be bound.
    """
    if "\0" in str(path):
        raise OSError("a path has no null bytes")
    if (size := len(os.fsencode(path))) > MOST_PATH_BYTES:
        raise OSError(f"the path of a Unix socket has at most {MOST_PATH_BYTES} bytes, not {size}")
    try:
        listening.bind(str(path))
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise
        _free(path)
        listening.bind(str(path))


def _free(path: Path) -> None:
    """Remove a socket of this user at which nobody listens.

    Raises:
        OSError: something else is there.
    """
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode):
        kind = "folder" if stat.S_ISDIR(found.st_mode) else "link" if stat.S_ISLNK(found.st_mode) else "file"
        raise FileExistsError(f"it is a {kind}")
    if found.st_uid != os.geteuid():
        raise FileExistsError("the socket there belongs to another user")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:  # as many connections wait there as can
            pass
    raise FileExistsError("another process listens there")
