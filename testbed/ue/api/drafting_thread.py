"""Thread in which an endpoint drafts, beside the web server's."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from testbed.process.threads import result_of

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class DraftingThread:
    """A thread with its own event loop, which drafting may block.

    Attributes:
        lost: whether the loop has ended by an error; nothing can be decoded any more.
        on_loss: called in the thread then.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.lost, self._closing = False, False
        self.on_loss: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._work, name="device", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            if not self._closing:
                self.lost = True
                LOG.critical("the drafting thread has ended")
                self.on_loss()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and wait for it; interrupting the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return result_of(future)
        finally:
            future.cancel()

    def close(self) -> None:
        """Stop the loop and end the thread."""
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
