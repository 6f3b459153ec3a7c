"""The runner seam: engine passes from the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from testbed.bs.engines.base import Share, VerifyEngine, VerifyRequest, VerifyResult
from testbed.bs.engines.coupled import chosen, few_chosen, unchosen
from testbed.errors import EngineError

T = TypeVar("T")
SHORT_S = 2e-3
"""Passes shorter than this run in the loop, where the engine allows it."""
FEW_TOKENS = 16
"""New tokens of a pass that takes no longer than the last one by much, however few that one computed."""
MOST_VALUES = 2**18
"""Probabilities and elements of hidden states that the rounds of a pass may read in the loop: a few milliseconds."""
AHEAD_S = 2e-2
"""Longest time of passes in a row, unless the first one takes longer."""


def nobody() -> bool:
    """No request waits for the next pass."""
    return False


class EngineRunner(Protocol):
    """Runs passes without blocking the event loop for long."""

    def submit(self, request: VerifyRequest) -> None:
        """See `VerifyEngine.submit`."""

    async def step(self, waiting: Callable[[], bool] = nobody) -> list[Share]:
        """See `VerifyEngine.step`. Tokens of coupled sampling that read many values are yet to be chosen (`unchosen`).

        Args:
            waiting: whether a request waits for the next pass, so that no token is decoded ahead; from any thread.
        """

    def cached(self, request: VerifyRequest) -> int | None:
        """Leading tokens of a request that its session has in the cache; None: the engine reports them after a pass."""

    async def judged(self, positions: int) -> None:
        """Account for the time of judging this many positions by hidden states."""

    async def beside(self, work: Callable[[], T]) -> T:
        """The result of a computation that would stop the event loop for long."""

    def release(self, session: str) -> None:
        """Release a session of the engine, soon."""


class ThreadRunner:
    """Runs passes in a thread of the engine's own, so that messages are handled meanwhile.

    Handing a pass to the thread and back takes longer than a short pass of a small model. After a pass of less than
    `SHORT_S`, the next one therefore runs in the loop, if the engine allows it (`VerifyEngine.any_thread`), no round is
    the first of its session, whose prompt may take long, there are not many more tokens to compute (`FEW_TOKENS`, or
    twice those of the last pass), and coupled sampling has few to choose. Between passes the loop alone uses the
    engine.

    Where all rounds of a pass allow it (`VerifyRequest.ahead`), the thread decodes their next tokens in further passes
    before the loop gets the results, until a request waits: what the loop does for a token takes long beside a pass of
    a small model.

    Args:
        thread: the engine's thread.
        other: runs what is computed beside passes; None: the event loop's own threads.
    """

    def __init__(self, engine: VerifyEngine, thread: ThreadPoolExecutor, other: Executor | None = None) -> None:
        self._engine, self._thread, self._other = engine, thread, other
        self._known: set[str] = set()
        """Sessions known to the engine: only these are released, however fast others open and close."""
        self._short = self._passing = False
        """Whether the next pass will be short, and whether the thread runs one."""
        self._unfinished: dict[str, int] = {}
        """Sessions whose rounds the engine has, and the number of tokens that it computes for each at most."""
        self._new = 0
        """Tokens that the last pass computed."""
        self._streams = True
        """Whether all rounds of the next pass may be decoded ahead."""
        self._leaving: list[str] = []
        """Sessions to be released after the running pass."""

    def submit(self, request: VerifyRequest) -> None:
        """See `VerifyEngine.submit`."""
        read = 0 if request.coupling is None else (len(request.draft) + 1) * self._engine.vocab_size
        if request.session not in self._known or read > MOST_VALUES:
            self._known.add(request.session)
            self._short = False
        self._streams = self._streams and request.ahead > 0
        self._engine.submit(request)
        new = len(request.prefix) + len(request.draft) - self._engine.cached(request)
        self._unfinished[request.session] = new

    async def step(self, waiting: Callable[[], bool] = nobody) -> list[Share]:
        """See `EngineRunner.step`."""
        streams, self._streams = self._streams, True
        few = sum(self._unfinished.values()) <= max(FEW_TOKENS, 2 * self._new)
        if self._short and few and not streams:
            shares = self._passes(waiting)
            await asyncio.sleep(0)  # messages are received between passes
            return shares
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Share]] = loop.create_future()
        self._passing = True
        self._thread.submit(self._pass, loop, done, waiting)  # without the second future of `run_in_executor`
        return await done

    def _passes(self, waiting: Callable[[], bool]) -> list[Share]:
        """One pass, and those that decode ahead."""
        start_s = time.perf_counter()
        shares = self._step()
        took_s = time.perf_counter() - start_s
        until_s = start_s + AHEAD_S - took_s
        self._new = sum(share.new for share in shares)
        self._short = self._engine.any_thread and took_s < SHORT_S
        while time.perf_counter() < until_s and not waiting() and (requests := _next_rounds(shares)):
            if self._unfinished:  # rounds without room in this pass
                break
            try:
                results = self._engine.verify(requests)
            except EngineError:  # sessions are as they were: the next step meets the reason again
                break
            results = [chosen(*found) for found in zip(requests, results, strict=True)]
            shares = [_longer(*found) for found in zip(shares, requests, results, strict=True)]
        return shares

    def _step(self) -> list[Share]:
        try:
            shares = few_chosen(self._engine.step(), MOST_VALUES)
        except BaseException:
            self._unfinished.clear()  # all are dropped
            raise
        for share in shares:
            if share.result is not None:
                self._unfinished.pop(share.request.session, None)
        return shares

    def _pass(
        self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[list[Share]], waiting: Callable[[], bool]
    ) -> None:
        """One pass in the engine's thread; its result or error goes to the loop, which may be closed by then."""
        found: list[Share] | BaseException
        try:
            found = self._passes(waiting)
        except BaseException as exc:
            found = exc
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._passed, done, found)

    def _passed(self, done: asyncio.Future[list[Share]], found: list[Share] | BaseException) -> None:
        self._passing = False
        for session in self._leaving:
            self._drop(session)
        self._leaving.clear()
        if done.done():  # cancelled
            return
        if isinstance(found, BaseException):
            done.set_exception(found)
        else:
            done.set_result(found)

    def cached(self, request: VerifyRequest) -> int | None:
        """See `EngineRunner.cached`; unknown during a pass."""
        return None if self._passing else self._engine.own(request)

    async def judged(self, positions: int) -> None:
        """Nothing: judging took its time."""

    async def beside(self, work: Callable[[], T]) -> T:
        """See `EngineRunner.beside`: in another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._other, work)

    def release(self, session: str) -> None:
        """Release a session of the engine, after the running pass."""
        if session not in self._known:
            return
        self._known.remove(session)
        if self._passing:
            self._leaving.append(session)
        else:
            self._drop(session)

    def _drop(self, session: str) -> None:
        self._unfinished.pop(session, None)
        self._engine.release(session)


def _next_rounds(shares: Sequence[Share]) -> list[VerifyRequest]:
    """The rounds of the tokens after those that were found; empty: not all shares allow one."""
    rounds = []
    for share in shares:
        request, result = share.request, share.result
        if result is None or unchosen(share) or len(result.argmax) > request.ahead:
            return []
        if int(result.argmax[-1]) in request.ends:
            return []
        rounds.append(replace(request, prefix=np.concatenate([request.prefix, result.argmax]), ahead=0))
    return rounds


def _longer(share: Share, request: VerifyRequest, ahead: VerifyResult) -> Share:
    """A share with the token that another pass decoded ahead."""
    assert share.result is not None
    computed = 1 if ahead.cached is None else len(request.prefix) - ahead.cached
    result = replace(
        share.result,
        argmax=np.append(share.result.argmax, ahead.argmax),
        margin=np.append(share.result.margin, ahead.margin),
    )
    return share._replace(new=share.new + computed, result=result, passes=share.passes + 1)
