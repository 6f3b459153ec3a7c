"""Garbage collection in processes that serve others: a full one stops all threads, the longer the more is loaded."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loaded_heap_frozen() -> Iterator[None]:
    """Leave the objects that exist at the start of the block out of garbage collections within it.

    Modules and models consist of hundreds of thousands of objects that live as long as the process. A full collection
    that visits them stops the event loop: no message is received, and no pass begins.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
