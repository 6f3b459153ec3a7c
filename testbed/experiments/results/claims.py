"""Output directories that belong to one configuration, and results kept in them so that a second call resumes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from testbed.config import Config, load, save
from testbed.files import claim, held, require_empty, whole_file

LOG = logging.getLogger(__name__)
CONFIG = "config.yaml"
C = TypeVar("C", bound=Config)
T = TypeVar("T")


@contextlib.contextmanager
def claimed(
    config: C, out: Path, what: str, agree: Callable[[C], None] | None = None, *, resumes: bool = True
) -> Iterator[None]:
    """Reserve a directory for one configuration, saved as `config.yaml`, and lock it for this process.

    Args:
        what: kind of run, for messages.
        agree: see `files.claim`.
        resumes: whether the same command goes on with what is finished; Ctrl-C logs it then.

    Raises:
        BadInput: the directory belongs to another configuration or contains other files, is in use by another process,
            or cannot be written to.
    """
    if not (out / CONFIG).exists():
        require_empty(out, f"and holds no {what}")
    with held(out, f"another process is running the {what} in {out}; wait for it, or choose another --out"):
        claim(out / CONFIG, config, lambda path: load(type(config), path), save, what, agree)
        try:
            yield
        except KeyboardInterrupt:
            if resumes:
                LOG.warning("what the %s has finished is kept in %s; the same command goes on", what, out)
            raise


def kept(path: Path, kind: type[T], make: Callable[[], T]) -> T:
    """A result from its JSON file; computed and written there if the file is missing."""
    if not path.exists():
        made = make()
        with whole_file(path) as part:
            part.write_bytes(msgspec.json.encode(made))
    return msgspec.json.decode(path.read_bytes(), type=kind)
