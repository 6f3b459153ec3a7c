"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import TestbedError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place in the end: readers see the old file or the new one,
    never half of it.

    Raises:
        TestbedError: it cannot be written, as on a full disk; what was there before stays.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        part.replace(path)
    except OSError as exc:
        reason = os.strerror(exc.errno) if exc.errno else exc  # libraries say more, and not the same
        raise TestbedError(f"cannot write {path}: {reason}") from exc
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
