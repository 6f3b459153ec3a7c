"""Lists in options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from testbed.errors import BadInput

Number = TypeVar("Number", int, float)


def numbers(text: str, kind: Callable[[str], Number], option: str) -> list[Number]:
    """Numbers separated by commas.

    Raises:
        BadInput: anything else.
    """
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as exc:
        whole = "whole numbers" if kind is int else "numbers"
        raise BadInput(f"{option} takes {whole} separated by commas, not {text!r}") from exc
