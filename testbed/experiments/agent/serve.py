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
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

from testbed import __version__
from testbed.channel.access import check_address, require_keys
from testbed.channel.keys import load_server
from testbed.channel.server_link import ZmqServerLink
from testbed.errors import BadInput, ProtocolError, TestbedError
from testbed.experiments.agent.files import Files, free_bytes
from testbed.experiments.agent.owners import owner_name
from testbed.experiments.agent.runner import OrderRunner
from testbed.experiments.agent.stored_orders import OrderStore, chunk_of, state_of
from testbed.experiments.agent.work import check_reach, resolve_files
from testbed.files import held
from testbed.process.heap import loaded_heap_frozen
from testbed.process.threads import started_threads
from testbed.protocols.codec import AnyArray, Packet, encode
from testbed.protocols.messages import Message
from testbed.protocols.orders import (
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
from testbed.tasks import together

LOG = logging.getLogger(__name__)
THREADS = 2
"""Threads that read and write files: for uploads, and for results."""
MOST_CHUNKS = 16
"""Chunks of uploads that wait to be stored. A further one takes the place of the last one of the lab machine (key) that
has the most, or is dropped if its own has as many. Lab machines send again what was dropped."""
Reply = tuple[Message, dict[str, AnyArray]]


class WaitingChunks:
    """Chunks of uploads that wait to be stored; lab machines take turns."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[tuple[bytes, Packet[Any]]]] = {}
        """Chunks of each lab machine that has any, in the order of their turns."""
        self._some = asyncio.Event()

    def put(self, owner: bytes, chunk: tuple[bytes, Packet[Any]]) -> None:
        """Add a chunk with its sender, or drop one."""
        own = self._waiting.get(owner, deque())
        if sum(map(len, self._waiting.values())) >= MOST_CHUNKS:
            most = max(self._waiting, key=lambda one: len(self._waiting[one]))
            if len(own) >= len(self._waiting[most]):
                return
            self._waiting[most].pop()
            if not self._waiting[most]:
                del self._waiting[most]
        own.append(chunk)
        self._waiting.setdefault(owner, own)
        self._some.set()

    async def get(self) -> tuple[bytes, Packet[Any]]:
        """Remove and return the oldest chunk of the lab machine whose turn it is."""
        await self._some.wait()
        owner, chunks = next(iter(self._waiting.items()))
        del self._waiting[owner]
        chunk = chunks.popleft()
        if chunks:
            self._waiting[owner] = chunks
        if not self._waiting:
            self._some.clear()
        return chunk


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
        TestbedError: no thread can be started, or it failed while it served.
    """
    require_keys([check_address(setup.listen)], setup.keys, setup.insecure)
    with (
        held(setup.workdir, f"another agent uses {setup.workdir}"),
        loaded_heap_frozen(),
        started_threads(THREADS, "files") as threads,
    ):
        asyncio.run(_serve(Agent(setup, say, threads), setup, ready))


async def _serve(agent: Agent, setup: AgentSetup, ready: Callable[[str], None]) -> None:
    keys = load_server(Path(setup.keys)) if setup.keys else None
    link = ZmqServerLink(setup.listen, keys=keys, frame_bytes=FRAME_BYTES)
    try:
        working = asyncio.ensure_future(
            together([agent.listen(link), agent.store(link), agent.runner.work(), agent.runner.save()])
        )
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
    """Answers the lab machine's messages and carries out its orders.

    Args:
        threads: read and write files; None: the event loop's own threads.
    """

    def __init__(self, setup: AgentSetup, say: Callable[[str], None], threads: Executor | None = None) -> None:
        self._setup, self._threads = setup, threads
        self._files, self._orders = Files(setup.workdir), OrderStore(setup.workdir)
        self._files.expire()
        self.runner = OrderRunner(self._orders, self._arguments, say, threads)
        self._chunks = WaitingChunks()

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
                await link.send(peer, encode(*self._reply(packet, self._owner(link, peer))))
            else:
                self._chunks.put(self._owner(link, peer), (peer, packet))

    async def store(self, link: ZmqServerLink) -> None:
        """Store chunks of uploads until cancelled, in a thread: a file that exists may have to be hashed."""
        while True:
            peer, packet = await self._chunks.get()
            owner = self._owner(link, peer)
            reply = await asyncio.get_running_loop().run_in_executor(self._threads, self._reply, packet, owner)
            await link.send(peer, encode(*reply))

    def _owner(self, link: ZmqServerLink, peer: bytes) -> bytes:
        """The lab machine (key) of a connection; empty without keys."""
        return link.owner(peer) if self._setup.keys else b""

    def _reply(self, packet: Packet[Any], owner: bytes = b"") -> Reply:
        try:
            return self.answer(packet.message, packet.arrays, owner)
        except (TestbedError, OSError) as exc:
            return _refusal(exc), {}
        except Exception:  # no reason to end the agent
            LOG.exception("a message of a lab machine failed")
            return Refused(reason="internal error; the agent's log says more"), {}

    def answer(self, message: Orders, arrays: dict[str, AnyArray], owner: bytes = b"") -> Reply:
        """The reply to one message of a lab machine, the `owner` of a key.

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
            return self._files.put(message, arrays[DATA], owner), {}
        if isinstance(message, Order):
            return self._take(message, owner_name(owner)), {}
        if isinstance(message, Cancel):
            return Cancelled(prefix=message.prefix, count=self.runner.cancel(message.prefix, owner_name(owner))), {}
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

    def _take(self, order: Order, owner: str) -> State:
        """Accept an order; a failed one is retried."""
        if isinstance(order.what, Running):
            resolve_files(order.what.config, self._files, owner)
        else:
            check_reach(order.what.bs)
        kept = self._orders.add(order, owner)
        ended = kept.ended
        if kept.owner == owner and ended is not None and ended["state"] == "failed":
            kept.reset()
        self.runner.wake()
        return self._state(order.id)

    def _arguments(self, name: str) -> list[str]:
        """Command line of the process of an order."""
        setup = self._setup
        arguments = ["ue", "agent", "--workdir", str(setup.workdir), "--carry-out", name]
        arguments += ["--bs-keys", setup.bs_keys] if setup.bs_keys else []
        return [*arguments, "--insecure"] if setup.insecure else arguments

    def _state(self, name: str) -> State:
        kept = self._orders.get(name)
        return State(id=name, state="unknown") if kept is None else state_of(kept, self.runner.running == name)


def _refusal(exc: Exception) -> Refused:
    return Refused(reason=" ".join(str(exc).split())[:500])
