"""Reading of small files in /sys and /proc."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import SensorError


def text_of(path: Path) -> str | None:
    """Stripped content of a file; None if it is missing or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def whole_of(path: Path) -> int | None:
    """Integer in a file; None if it is missing or not an integer."""
    text = text_of(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def need(path: Path) -> int:
    """Integer in a file that must exist.

    Raises:
        SensorError: the file is missing, cannot be read, or contains no integer.
    """
    try:
        return int(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as exc:
        raise SensorError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise SensorError(f"{path} holds no whole number") from exc


def numbered(folder: Path, pattern: str) -> list[Path]:
    """Entries of a folder, sorted by their trailing numbers."""
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))
