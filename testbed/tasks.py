"""Tasks that end together: the first failure cancels the others, and nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results in order; the first failure cancels the others.

    Python 3.10, which UEs may have, lacks `asyncio.TaskGroup`.
    """
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(*tasks)


async def beside(services: Iterable[Coroutine[Any, Any, None]], main: Coroutine[Any, Any, T]) -> T:
    """Return the result of `main`, with services running until then; the failure of a service cancels `main`."""
    serving = asyncio.ensure_future(together(services))
    working = asyncio.create_task(main)
    try:
        await asyncio.wait({working, serving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            serving.result()
        return await working
    finally:
        await cancel(working, serving)


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until all have ended, whatever they raise."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
