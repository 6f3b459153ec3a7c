"""Model directories of others, before a library reads them."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import ModelError


def check_regular(directory: Path) -> None:
    """Refuse a model directory with files that are none: transformers would wait for a pipe, or read a device for ever.
    One that does not exist is left to those who read it.

    Raises:
        ModelError: a pipe, device, socket, or a link that leads nowhere.
    """
    try:
        odd = [path for path in directory.iterdir() if not path.is_dir() and not path.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as exc:
        raise ModelError(f"{directory}: {exc.strerror}; give a Hugging Face model directory") from exc
    if odd:
        raise ModelError(f"{min(odd)}: not a regular file")
