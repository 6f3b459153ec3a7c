"""The Hugging Face hub: whether models and data sets may be downloaded, which no directory of others chooses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

CLOSED = "TESTBED_NO_DOWNLOADS"
"""Environment variable under which nothing is downloaded, also by child processes."""


def may_download() -> bool:
    """Whether more may be used than what the hub's cache on this machine has."""
    return CLOSED not in os.environ


@contextlib.contextmanager
def no_downloads(when: bool = True) -> Iterator[None]:
    """Let this process, and those that it starts, download nothing until the end of the block.

    Args:
        when: False: as before.
    """
    before = os.environ.get(CLOSED)
    if when:
        os.environ[CLOSED] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CLOSED, None)
