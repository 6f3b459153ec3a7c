"""A base station as the live view sees it: from another thread, and only as long as it serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from testbed.bs.observer import Look, Tally

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LOG = logging.getLogger(__name__)
ASK_S = 5.0
"""How long the server's event loop may take to answer; its passes run elsewhere, so that it is rarely busy for long."""
LOADING, SERVING, CLOSING = "loading", "serving", "closing"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a base station that serves can be asked; `look` and `count` run on its event loop."""

    loop: asyncio.AbstractEventLoop
    look: Callable[[int, int], Look]
    """What happened after the round and the pass of these numbers, and how things stand."""
    count: Callable[[], tuple[dict[str, Any], Tally]]
    """All that is counted."""
    about: dict[str, str]
    """What it serves: model, engine, scheduler, judge."""
    text: bool = False
    """Whether rounds hold the tokens that were committed."""
    tokenizer: Tokenizer | None = None
    """The target's, for text; None: there is none, and ids are shown."""


class Station:
    """Whether a base station serves yet, and what it answers.

    `attach` and `detach` are called on the server's event loop, `ask` on that of the live view.
    """

    def __init__(self) -> None:
        self.state = LOADING
        self.source: Source | None = None
        self._here: asyncio.AbstractEventLoop | None = None
        self._asked: set[asyncio.Future[Any]] = set()

    def attach(self, source: Source) -> None:
        """It serves from now on."""
        self.source, self.state = source, SERVING

    def detach(self) -> None:
        """It serves no more: whoever has asked is not kept waiting."""
        self.source, self.state = None, CLOSING
        if self._here is not None:
            with contextlib.suppress(RuntimeError):  # the live view is gone
                self._here.call_soon_threadsafe(self._give_up)

    async def ask(self, question: Callable[[Source], T]) -> T | None:
        """The answer to a question, put on the server's event loop; None: it does not serve, or takes too long."""
        source = self.source
        if source is None:
            return None
        here = self._here = asyncio.get_running_loop()
        answer: asyncio.Future[T | None] = here.create_future()

        def run() -> None:
            try:
                found: T | None = question(source)
            except Exception:
                LOG.exception("the live view asked for something that failed")
                found = None
            with contextlib.suppress(RuntimeError):  # it is gone
                here.call_soon_threadsafe(_settle, answer, found)

        try:
            source.loop.call_soon_threadsafe(run)
        except RuntimeError:  # the server is gone
            return None
        self._asked.add(answer)
        try:
            return await asyncio.wait_for(answer, ASK_S)
        except asyncio.TimeoutError:
            return None
        finally:
            self._asked.discard(answer)

    def _give_up(self) -> None:
        for answer in self._asked:
            _settle(answer, None)


def _settle(answer: asyncio.Future[Any], found: Any) -> None:
    if not answer.done():
        answer.set_result(found)
