"""Carries out an agent's orders one after another, and records their ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from testbed.clock import within
from testbed.errors import TestbedError, no_descriptor
from testbed.experiments.agent.child import run_child
from testbed.experiments.agent.stored_orders import OrderStore, StoredOrder, result_files
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.protocols.orders import CANCELLED
from testbed.tasks import cancel

TRIES = 3
"""Number of process crashes after which an order fails."""
MOST_WAIT_S = 86_400.0
"""Longest wait for a start time. A later one is from before the last reboot (monotonic clock), so the order starts."""
RETRY_S = 1.0
"""Time between attempts to write the ends of orders that could not be written, or to read results."""


class OrderRunner:
    """Carries out stored orders, each in a process of its own; lab machines (keys) take turns.

    Args:
        arguments: command line of the process of an order, by its id.
        say: takes a line for people.
        threads: read files; None: the event loop's own threads.

    Attributes:
        running: id of the order that is carried out now; None: none.
    """

    def __init__(
        self,
        orders: OrderStore,
        arguments: Callable[[str], Sequence[str]],
        say: Callable[[str], None],
        threads: Executor | None = None,
    ) -> None:
        self._orders, self._arguments, self._say, self._threads = orders, arguments, say, threads
        self.running: str | None = None
        self._child: asyncio.Task[tuple[int, str]] | None = None
        """The running order's process."""
        self._wake, self._unsaved = asyncio.Event(), asyncio.Event()
        self._turns: dict[str, int] = {}
        """When each lab machine's last order began, as a count of orders."""

    def wake(self) -> None:
        """Look at the waiting orders again: there is a new one."""
        self._wake.set()

    def cancel(self, prefix: str, owner: str = "") -> int:
        """End all unfinished orders of a lab machine whose ids begin with `prefix`; returns how many of them are
        cancelled. Of orders of others nothing is told: ids are secrets, by which results are fetched.

        An order's end is on disk before its process is stopped, unless it cannot be written: an order whose agent has
        crashed does not begin again.
        """
        found = self._orders.named(prefix, owner)
        for kept in found:
            if self._write_end(kept, "failed", CANCELLED, time.perf_counter()) and kept.order.id == self.running:
                assert self._child is not None
                self._child.cancel()
        return sum((kept.ended or {})["note"] == CANCELLED for kept in found)

    async def work(self) -> None:
        """Carry out waiting orders, the oldest of each lab machine first, for ever."""
        while True:
            waits_s = {kept: _wait_s(kept) for kept in self._orders.waiting()}
            if due := [kept for kept, wait_s in waits_s.items() if not wait_s]:
                first = min(due, key=lambda kept: self._turns.get(kept.owner, 0))
                self._turns[first.owner] = max(self._turns.values(), default=0) + 1
                await self._carry_out(first)
                continue
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await within(min(waits_s.values(), default=MOST_WAIT_S), self._wake.wait())

    async def _carry_out(self, kept: StoredOrder) -> None:
        name = kept.order.id
        self._say(f"order {name}")
        self.running, began_s = name, time.perf_counter()
        self._child = child = asyncio.create_task(run_child(self._arguments(name), self._say))
        try:
            await asyncio.wait([child])
            if not child.cancelled():  # otherwise the order was cancelled
                await self._end(kept, *child.result(), began_s)
        finally:
            await cancel(child)
            self.running = self._child = None

    async def _end(self, kept: StoredOrder, code: int, last_line: str, began_s: float) -> None:
        """Record the end of an order's process; a crashed one is tried again."""
        if kept.ended is not None:  # cancelled at the same moment, and perhaps deleted since
            return
        if code < 0:
            if kept.count_crash() >= TRIES:
                note = f"its process was ended by signal {-code}, {TRIES} times in all"
                self._write_end(kept, "failed", note, began_s)
        elif code > 0:
            self._write_end(kept, "failed", last_line or f"exit code {code}", began_s)
        else:
            try:
                (kept.result / JOURNAL).unlink(missing_ok=True)
                self._write_end(kept, "done", "", began_s, await self._results(kept))
            except (OSError, TestbedError) as exc:  # deleted meanwhile, perhaps: then its end is recorded already
                self._write_end(kept, "failed", str(exc), began_s)

    async def _results(self, kept: StoredOrder) -> Sequence[tuple[str, int, str]]:
        """The files of an order that is done, as soon as descriptors are free to read them with; none if the order ends
        meanwhile.

        Raises:
            OSError, TestbedError: see `result_files`.
        """
        while kept.ended is None:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, result_files, kept.result)
            except OSError as exc:
                if not no_descriptor(exc):
                    raise
            await asyncio.sleep(RETRY_S)
        return ()

    def _write_end(
        self, kept: StoredOrder, state: str, note: str, began_s: float, files: Sequence[tuple[str, int, str]] = ()
    ) -> bool:
        """Record the end of an order, in memory if it cannot be written (`save`); returns False if it had ended before,
        for example cancelled.
        """
        if kept.ended is not None:
            return False
        self._say(f"order {kept.order.id}: {state} {note}".rstrip())
        ended_s = time.perf_counter()
        try:
            kept.end({"state": state, "note": note, "began_s": began_s, "ended_s": ended_s, "files": files})
        except TestbedError as exc:
            if not self._unsaved.is_set():
                self._say(f"{exc}; the ends of orders are kept in memory until they can be written")
            self._unsaved.set()
        return True

    async def save(self) -> None:
        """Write the ends of orders that could not be written when they ended, for ever."""
        try:
            while True:
                await self._unsaved.wait()
                await asyncio.sleep(RETRY_S)
                with contextlib.suppress(TestbedError):
                    self._orders.save()
                    self._unsaved.clear()
                    self._say("the ends of all orders are written")
        finally:
            with contextlib.suppress(TestbedError):
                self._orders.save()


def _wait_s(kept: StoredOrder) -> float:
    """Time until an order's start; 0 if it is reached."""
    wait_s = kept.start_s - time.perf_counter()
    return wait_s if 0 < wait_s < MOST_WAIT_S else 0.0
