"""`testbed ue agent`: accepts orders, carries them out one after another, and keeps results until they are collected.

An order is on disk before it is acknowledged, so an agent resumes after being killed: finished orders are kept, and the
running one continues with its remaining prompts (`experiments/runs/journal.py`). Accepted orders are carried out
without further contact to the lab machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from testbed import __version__
from testbed.channel.access import check_address, require_keys
from testbed.channel.keys import load_server
from testbed.channel.link import ZmqServerLink
from testbed.clock import within
from testbed.errors import BadInput, ProtocolError, TestbedError
from testbed.experiments.agent.child import run_child
from testbed.experiments.agent.files import Files, free_bytes
from testbed.experiments.agent.stored_orders import OrderStore, StoredOrder, chunk_of, result_files, state_of
from testbed.experiments.agent.work import check_reach, resolve_files
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.files import held
from testbed.process.heap import loaded_heap_frozen
from testbed.protocols.codec import AnyArray, Packet, encode
from testbed.protocols.messages import Message
from testbed.protocols.orders import (
    CANCELLED,
    DATA,
    FRAME_BYTES,
    VERSION,
    Ask,
    Call,
    Cancel,
    Cancelled,
    Chunk,
    Drop,
    Get,
    Order,
    Orders,
    Put,
    Refused,
    Running,
    Standing,
    State,
    decode_order,
)
from testbed.tasks import cancel, together

LOG = logging.getLogger(__name__)
TRIES = 3
"""Number of process crashes after which an order fails."""
MOST_WAIT_S = 86_400.0
"""Longest wait for a start time. A later one is from before the last reboot (monotonic clock), so the order starts."""
MOST_CHUNKS = 16
"""Chunks of uploads that wait to be stored; further ones are dropped, and lab machines send them again."""
Reply = tuple[Message, dict[str, AnyArray]]


class AgentSetup(NamedTuple):
    """Settings of an agent."""

    listen: str
    workdir: Path
    keys: str | None = None
    """Directory made by `keys new` on this machine; defines which lab machines may give orders."""
    bs_keys: str | None = None
    """Directory of this UE's keys for base stations."""
    insecure: bool = False


def run_agent(setup: AgentSetup, ready: Callable[[str], None], say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        BadInput: an unusable address, keys or directory, or a directory in use by another agent.
        TestbedError: it failed while it served.
    """
    require_keys([check_address(setup.listen)], setup.keys, setup.insecure)
    with held(setup.workdir, f"another agent uses {setup.workdir}"), loaded_heap_frozen():
        asyncio.run(_serve(Agent(setup, say), setup, ready))


async def _serve(agent: Agent, setup: AgentSetup, ready: Callable[[str], None]) -> None:
    keys = load_server(Path(setup.keys)) if setup.keys else None
    link = ZmqServerLink(setup.listen, keys=keys, frame_bytes=FRAME_BYTES)
    try:
        working = asyncio.ensure_future(together([agent.listen(link), agent.store(link), agent.work()]))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, working.cancel)
        ready(link.addresses[0])
        with contextlib.suppress(asyncio.CancelledError):
            await working
    except BadInput as exc:  # from then on no option is at fault: a supervisor restarts the agent
        raise TestbedError(f"the agent failed: {exc}") from exc
    finally:
        link.close()


class Agent:
    """Answers the lab machine's messages and carries out its orders."""

    def __init__(self, setup: AgentSetup, say: Callable[[str], None]) -> None:
        self._setup, self._say = setup, say
        self._files, self._orders = Files(setup.workdir), OrderStore(setup.workdir)
        self._files.expire()
        self._running: str | None = None
        self._child: asyncio.Task[tuple[int, str]] | None = None
        """The running order's process."""
        self._wake = asyncio.Event()
        self._chunks: asyncio.Queue[tuple[bytes, Packet[Any]]] = asyncio.Queue(MOST_CHUNKS)

    async def listen(self, link: ZmqServerLink) -> None:
        """Answer messages, for ever; chunks of uploads are left to `store`."""
        while True:
            peer, frames = await link.recv()
            try:
                packet = decode_order(frames)
            except ProtocolError as exc:
                await link.send(peer, encode(_refusal(exc)))
                continue
            if not isinstance(packet.message, Put):
                await link.send(peer, encode(*self._reply(packet)))
            elif not self._chunks.full():
                self._chunks.put_nowait((peer, packet))

    async def store(self, link: ZmqServerLink) -> None:
        """Store chunks of uploads until cancelled, in a thread: a file that exists may have to be hashed."""
        while True:
            peer, packet = await self._chunks.get()
            await link.send(peer, encode(*await asyncio.to_thread(self._reply, packet)))

    def _reply(self, packet: Packet[Any]) -> Reply:
        try:
            return self.answer(packet.message, packet.arrays)
        except (TestbedError, OSError) as exc:
            return _refusal(exc), {}
        except Exception:  # no reason to end the agent
            LOG.exception("a message of a lab machine failed")
            return Refused(reason="internal error; the agent's log says more"), {}

    def answer(self, message: Orders, arrays: dict[str, AnyArray]) -> Reply:
        """The reply to one message.

        Raises:
            TestbedError: the message is refused.
            OSError: a disk error.
        """
        if isinstance(message, Call):
            if message.version != VERSION:
                raise BadInput(f"order protocol version {message.version} is not supported; this agent uses {VERSION}")
            return self._standing(message.token), {}
        if isinstance(message, Put):
            if set(arrays) != {DATA}:
                raise BadInput(f"a chunk must come in exactly one array, {DATA}")
            return self._files.put(message, arrays[DATA]), {}
        if isinstance(message, Order):
            return self._take(message), {}
        if isinstance(message, Cancel):
            return Cancelled(prefix=message.prefix, count=self._cancel(message.prefix)), {}
        kept = self._orders.get(message.id)
        if isinstance(message, Get):
            if kept is None:
                raise BadInput(f"the agent has no order {message.id}")
            data = chunk_of(kept, message)
            return Chunk(id=message.id, name=message.name, offset=message.offset), {DATA: data}
        if isinstance(message, Drop):
            self._orders.drop(message.id)
        else:
            assert isinstance(message, Ask)
        return self._state(message.id), {}

    def _standing(self, token: int) -> Standing:
        return Standing(
            version=VERSION, token=token, time_s=time.perf_counter(), host=platform.node()[:200], testbed=__version__,
            free_bytes=free_bytes(self._setup.workdir), waiting=len(self._orders.waiting()),
        )  # fmt: skip

    def _take(self, order: Order) -> State:
        """Accept an order; a failed one is retried."""
        if isinstance(order.what, Running):
            resolve_files(order.what.config, self._files)
        else:
            check_reach(order.what.bs)
        kept = self._orders.add(order)
        ended = kept.ended
        if ended is not None and ended["state"] == "failed":
            kept.reset()
        self._wake.set()
        return self._state(order.id)

    def _cancel(self, prefix: str) -> int:
        """End all unfinished orders whose ids begin with `prefix`; returns the number of those that are cancelled.

        An order's end is on disk before its process is stopped, so that it does not begin again after a crash.
        """
        found = self._orders.named(prefix)
        for kept in found:
            if self._write_end(kept, "failed", CANCELLED, time.perf_counter()) and kept.order.id == self._running:
                assert self._child is not None
                self._child.cancel()
        return sum((kept.ended or {})["note"] == CANCELLED for kept in found)

    def _state(self, name: str) -> State:
        kept = self._orders.get(name)
        return State(id=name, state="unknown") if kept is None else state_of(kept, self._running == name)

    # ------------------------------------------------------------ orders

    async def work(self) -> None:
        """Carry out waiting orders, oldest first, for ever."""
        while True:
            waits_s = {kept: _wait_s(kept) for kept in self._orders.waiting()}
            if due := next((kept for kept, wait_s in waits_s.items() if not wait_s), None):
                await self._carry_out(due)
                continue
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await within(min(waits_s.values(), default=MOST_WAIT_S), self._wake.wait())

    async def _carry_out(self, kept: StoredOrder) -> None:
        name = kept.order.id
        self._say(f"order {name}")
        self._running, began_s = name, time.perf_counter()
        arguments = ["ue", "agent", "--workdir", str(self._setup.workdir), "--carry-out", name]
        arguments += ["--bs-keys", self._setup.bs_keys] if self._setup.bs_keys else []
        arguments += ["--insecure"] if self._setup.insecure else []
        self._child = child = asyncio.create_task(run_child(arguments, self._say))
        try:
            await asyncio.wait([child])
            if not child.cancelled():  # otherwise the order was cancelled
                await self._end(kept, *child.result(), began_s)
        finally:
            await cancel(child)
            self._running = self._child = None

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
            (kept.result / JOURNAL).unlink(missing_ok=True)
            try:
                self._write_end(kept, "done", "", began_s, await asyncio.to_thread(result_files, kept.result))
            except (OSError, TestbedError) as exc:  # deleted meanwhile, perhaps: then its end is recorded already
                self._write_end(kept, "failed", str(exc), began_s)

    def _write_end(
        self, kept: StoredOrder, state: str, note: str, began_s: float, files: Sequence[tuple[str, int, str]] = ()
    ) -> bool:
        """Record the end of an order; returns False if it had ended before, for example cancelled."""
        if kept.ended is not None:
            return False
        self._say(f"order {kept.order.id}: {state} {note}".rstrip())
        kept.end({"state": state, "note": note, "began_s": began_s, "ended_s": time.perf_counter(), "files": files})
        return True


def _refusal(exc: Exception) -> Refused:
    return Refused(reason=" ".join(str(exc).split())[:500])


def _wait_s(kept: StoredOrder) -> float:
    """Time until an order's start; 0 if it is reached."""
    wait_s = kept.order.start_s - time.perf_counter()
    return wait_s if 0 < wait_s < MOST_WAIT_S else 0.0
