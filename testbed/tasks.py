"""Tasks that end together, and background tasks that are started again when they fail: none ends unseen."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
LOG = logging.getLogger(__name__)
RESTART_S = 1.0
"""Time between the failure of a background task and its restart."""
RECENT_S = 10.0
"""Time after a failure during which a background task counts as failing."""


async def together(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results in order; the first failure cancels the others.

    Python 3.10, which UEs may have, lacks `asyncio.TaskGroup`.
    """
    tasks = [asyncio.create_task(job) for job in jobs]
    results = asyncio.gather(*tasks)
    try:
        return await asyncio.shield(results)  # a cancellation reaches each task once, below, not while it cleans up
    finally:
        await cancel(*tasks)
        await asyncio.gather(results, return_exceptions=True)


async def beside(services: Iterable[Coroutine[Any, Any, None]], main: Coroutine[Any, Any, T]) -> T:
    """Return the result of `main`, with services running until then; the failure of a service cancels `main`."""
    serving = asyncio.ensure_future(together(services))
    working = asyncio.create_task(main)
    try:
        await asyncio.wait({working, serving}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        return await working
    finally:
        await cancel(working, serving)


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until all have ended, whatever they raise."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def to_its_end(job: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that ends although this task is cancelled meanwhile, however often; the
    cancellation is raised afterwards.
    """
    task = asyncio.ensure_future(job)
    await _ended(task)
    return task.result()


async def _ended(task: asyncio.Future[Any]) -> None:
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await _ended(task)
        raise


class Background:
    """Tasks beside the main work of a process: one that fails, or ends, is logged, counted and started again.

    Attributes:
        failures: number of failures by task, from 0.
    """

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self._failed_s: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], *, endless: bool = True
    ) -> asyncio.Task[None]:
        """Run `work` until the returned task is cancelled.

        Args:
            endless: False: work that ends by itself is counted, but not started again.
        """
        self.failures[name] = 0
        task = asyncio.create_task(self._keep(name, work, endless))
        self._tasks.append(task)
        return task

    @property
    def failing(self) -> list[str]:
        """Names of the tasks that failed within the last `RECENT_S`."""
        since_s = asyncio.get_running_loop().time() - RECENT_S
        return sorted(name for name, failed_s in self._failed_s.items() if failed_s > since_s)

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    async def _keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]], endless: bool) -> None:
        ended = False
        while endless or not ended:
            try:
                await work()
                ended = True
                LOG.error("%s has ended%s", name, "; it is started again" if endless else "")
            except Exception:
                LOG.exception("%s failed; it is started again", name)
            self.failures[name] += 1
            self._failed_s[name] = asyncio.get_running_loop().time()
            await asyncio.sleep(RESTART_S)
