"""The modelled parts of a base station under synthetic traffic: the verifier's memory and times, and the order of
rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TypeVar

from testbed.bs.pending import Pending
from testbed.bs.scheduling.base import Scheduler
from testbed.optim.pass_time import Coefficients

T = TypeVar("T")


class Observed(Scheduler):
    """Another scheduler, with what it is shown and told changed, and its memory limit watched.

    Args:
        each_round: show every round by itself, whatever the response gained or lost before it (WISP, eq. 6).
        bias, noise: relative error of the pass times that it plans by: the factor of each plan is
            (1 + bias)·exp(noise·z), z standard normal.
        coefficients: pass times without error; None: the scheduler plans by none.
        kv_tokens: memory limit of a pass; None: none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        coefficients: Coefficients | None,
        each_round: bool,
        bias: float,
        noise: float,
        seed: int,
        kv_tokens: int | None,
    ) -> None:
        self._scheduler, self._coefficients, self._each_round = scheduler, coefficients, each_round
        self._bias, self._noise, self._random = bias, noise, random.Random(seed)
        self._kv_tokens = kv_tokens
        self._shown: dict[Pending, Pending] = {}
        """What is shown of each waiting round, as long as it waits."""
        self.plans = self.bound = 0
        """Plans, and those in which a waiting request was left out that the memory limit excludes."""

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        """The other's batch."""
        shown = self._show(pending) if self._each_round else pending
        batch = self._believing().plan(shown, now_s)
        self.plans += 1
        if self._kv_tokens is not None:
            left = self._kv_tokens - sum(item.cached_tokens + item.new_tokens for item in batch)
            taken = {item.request.session for item in batch}
            waiting = (item for item in shown if item.request.session not in taken)
            self.bound += any(item.cached_tokens + item.new_tokens > left for item in waiting)
        return batch

    def _show(self, pending: Sequence[Pending]) -> list[Pending]:
        known = self._shown
        self._shown = {item: known.get(item) or replace(item, ahead_s=0.0) for item in pending}
        return list(self._shown.values())

    def due_s(self, item: Pending) -> float | None:
        """The deadline by the wrapped scheduler."""
        return self._scheduler.due_s(item)

    def _believing(self) -> Scheduler:
        if self._coefficients is None or not (self._bias or self._noise):
            return self._scheduler
        factor = (1 + self._bias) * math.exp(self._noise * self._random.gauss(0, 1))
        return self._scheduler.learn(self._coefficients.scaled(factor), None)


class Reservation:
    """Memory that is reserved for a request as a whole; requests wait for it in order of arrival."""

    def __init__(self, capacity: int) -> None:
        self._left = capacity
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def reserved(self, tokens: int) -> AsyncIterator[None]:
        """Hold memory for `tokens`, once it is free and all earlier requests have theirs; 0: hold none."""
        if tokens:
            await self._take(tokens)
        try:
            yield
        finally:
            self._give(tokens)

    async def _take(self, tokens: int) -> None:
        if not self._waiting and tokens <= self._left:
            self._left -= tokens
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, turn))
        await turn

    def _give(self, tokens: int) -> None:
        self._left += tokens
        while self._waiting and self._waiting[0][0] <= self._left:
            wanted, turn = self._waiting.popleft()
            self._left -= wanted
            turn.set_result(None)
