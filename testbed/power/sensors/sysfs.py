"""Small files of /sys and /proc."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import SensorError


def text_of(path: Path) -> str | None:
    """Content without white space around it; None: not there, or it cannot be read now."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def whole_of(path: Path) -> int | None:
    """A whole number; None: not there, or no number."""
    text = text_of(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def need(path: Path) -> int:
    """A whole number.

    Raises:
        SensorError: not there, it cannot be read, or no number.
    """
    try:
        return int(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as exc:
        raise SensorError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise SensorError(f"{path} holds no whole number") from exc


def numbered(folder: Path, pattern: str) -> list[Path]:
    """Entries of a folder, in the order of the numbers at their ends."""
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))
