"""Virtual time: an asyncio event loop whose clock jumps to the next timer, so that waiting takes no real time.

The library looptime is made for tests: it counts in steps of a fixed resolution, and idles in real time when no timer
is due. A simulation needs exact floats that repeat in every run, and an error as soon as all tasks wait forever.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from testbed.errors import TestbedError
from testbed.tasks import cancel

T = TypeVar("T")


class VirtualClock:
    """`Clock` that reads the running event loop's time."""

    def time(self) -> float:
        """Seconds since the loop started."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of the loop's time; with 0 or less, without yielding to other tasks."""
        if seconds > 0:
            await asyncio.sleep(seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that starts at 0 s and never waits."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self.now_s


class _Jump(selectors.SelectSelector):
    """Selector that polls for signals without blocking and advances the loop's time by the timeout."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return []
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise TestbedError("virtual time stands still: all tasks wait, and no timer is due")
            self._loop.now_s += timeout
        return ready


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new virtual event loop; tasks still running at its end are cancelled.

    Raises:
        TestbedError: deadlock: every task waits, and no timer is set.
    """
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            loop.run_until_complete(_end_others())
        finally:
            loop.close()


async def _end_others() -> None:
    await cancel(*(asyncio.all_tasks() - {asyncio.current_task()}))


class Simulation:
    """Logical processes under one virtual time: parallel discrete-event simulation, in one thread.

    Each logical process is an event loop of its own, and what it does at a time depends on its own timers and on what
    others have it call then, so that it runs alike in whatever company. At each time the one of the lowest rank runs
    first, until it waits, then the next.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, LogicalProcess]] = []
        self.failure: BaseException | None = None
        """What ended a main task."""

    def time(self) -> float:
        """Virtual seconds; with `sleep`, this implements `Clock`."""
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        """See `VirtualClock.sleep`."""
        if seconds > 0:
            await asyncio.sleep(seconds)

    def schedule(self, process: LogicalProcess, at_s: float) -> None:
        """Run a process at a time, unless it is rescheduled before."""
        process.next_s = at_s
        heapq.heappush(self._due, (at_s, process.rank, process))

    def run(self, until_s: float) -> None:
        """Run all that is due before a time, and then let it be that time.

        Raises:
            BaseException: what a main task has raised.
        """
        due = self._due
        while due and due[0][0] < until_s:
            at_s, _, process = heapq.heappop(due)
            if at_s == process.next_s:
                self.now_s = at_s
                process.run()
                if self.failure is not None:
                    raise self.failure
                if process.next_s < math.inf:
                    heapq.heappush(due, (process.next_s, process.rank, process))
        self.now_s = until_s

    def close(self, processes: Iterable[LogicalProcess]) -> None:
        """Cancel the tasks of processes, and close these."""
        for process in processes:
            process.end()


class LogicalProcess(asyncio.BaseEventLoop):
    """An event loop of a `Simulation`.

    Args:
        rank: unique number; see `Simulation`.

    Attributes:
        next_s: time at which it is due.
        runs: number of times that it has run so far.
    """

    def __init__(self, simulation: Simulation, rank: int) -> None:
        super().__init__()
        self._simulation, self.rank, self.next_s, self.runs = simulation, rank, math.inf, 0
        self._selector, self._running, self._paused_s = _Quiet(self), False, math.nan
        self._main: asyncio.Task[Any] | None = None

    def time(self) -> float:
        """Virtual seconds of the simulation."""
        return self._simulation.now_s

    def begin(self, main: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine from now on; the simulation ends with it if it fails."""
        self._main = self.create_task(main)
        self._main.add_done_callback(self._ended)

    def run(self) -> None:
        """Run until all tasks wait; `next_s` is then the time of the first timer."""
        self._running, self.runs = True, self.runs + 1
        try:
            self.run_forever()
        finally:
            self._running = False

    def pause(self) -> None:
        """Leave the simulation, with all timers, until `resume`."""
        self._paused_s, self.next_s = self.next_s, math.nan

    def resume(self) -> None:
        """Be there again, but not scheduled yet."""
        self.next_s = self._paused_s

    def end(self) -> None:
        """Cancel the main task, then those that it has left, and close the loop."""
        if self._main is not None and not self._main.done():
            self._main.cancel()
            self.run()
        if left := asyncio.all_tasks(self):
            for task in left:
                task.cancel()
            self.run()
        self.close()

    def call_soon(  # type: ignore[override]  # typeshed needs a TypeVarTuple, which Python 3.10 lacks
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """See `AbstractEventLoop.call_soon`; others may have a process call something at the present time, too."""
        handle = super().call_soon(callback, *args, context=context)
        if not self._running and self.next_s != self._simulation.now_s:
            self._simulation.schedule(self, self._simulation.now_s)
        return handle

    def call_at(  # type: ignore[override]  # see call_soon
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """See `AbstractEventLoop.call_at`."""
        timer = super().call_at(when, callback, *args, context=context)
        if not self._running and when < self.next_s:
            self._simulation.schedule(self, when)
        return timer

    def waits(self) -> None:
        """All tasks wait: leave `run`, unless a timer is due."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self.next_s = timers[0].when() if timers else math.inf
        if self.next_s >= self.time() + self._clock_resolution:  # type: ignore[attr-defined]
            self.stop()

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """See `AbstractEventLoop.default_exception_handler`: what is called must not fail either."""
        if "handle" in context and "exception" in context:
            self._simulation.failure = context["exception"]
        else:
            super().default_exception_handler(context)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._simulation.failure = task.exception()

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """There is no selector to wake."""


class _Quiet:
    """What a logical process has in place of a selector: no files, and no waiting."""

    def __init__(self, process: LogicalProcess) -> None:
        self._process = process

    def select(self, timeout: float | None = None) -> list[Any]:
        """See `selectors.BaseSelector.select`."""
        if timeout is None or timeout > 0:
            self._process.waits()
        return []
