"""Isolation of errors: a computation over several sessions that fails for one of them goes on for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def apart(items: Sequence[T], work: Callable[[Sequence[T]], R]) -> tuple[R, list[tuple[T, Exception]]]:
    """The result of `work` without the items for which it fails when given each alone, and those with their errors.

    Raises:
        Exception: that of `work`, which fails for no item alone, or still fails without those.
    """
    try:
        return work(items), []
    except Exception:
        failed = {i: exc for i, item in enumerate(items) if (exc := _error(work, item)) is not None}
        if not failed:
            raise
    rest = [item for i, item in enumerate(items) if i not in failed]
    return work(rest), [(items[i], exc) for i, exc in failed.items()]


def _error(work: Callable[[Sequence[T]], R], item: T) -> Exception | None:
    try:
        work([item])
    except Exception as exc:
        return exc
    return None
