"""Assertion that a call is refused with an error message of one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def refuse(call: Callable[[], object], error: type[Exception], *words: str) -> None:
    """Call, and expect an error whose message is one line and contains the words."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
