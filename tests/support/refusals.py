"""What a refusal looks like."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def refuse(call: Callable[[], object], error: type[Exception], *words: str) -> None:
    """Call, and expect one line that holds the words."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
