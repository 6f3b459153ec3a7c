"""`testbed ue agent`: waits for orders, carries them out one after another, keeps results until they are collected.

Whatever it has taken on is on its disk before it says so. Killed and started again it goes on: finished orders stay,
and the one that was under way goes on with the prompts that it has left (`experiments/runs/journal.py`). It never needs
its lab machine for what it has been told already.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from testbed import __version__
from testbed.channel.access import require_keys
from testbed.channel.keys import load_server
from testbed.channel.link import ZmqServerLink, check_address
from testbed.clock import within
from testbed.errors import BadInput, ProtocolError, TestbedError
from testbed.experiments.agent.files import Files, Shelf, StoredOrder, chunk_of, free_bytes, result_files, state_of
from testbed.experiments.agent.work import check_reach, grounded
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.experiments.runs.processes import STOP_S, command, environment
from testbed.files import held
from testbed.protocols.codec import AnyArray, encode
from testbed.protocols.messages import Message
from testbed.protocols.orders import (
    DATA,
    FRAME_BYTES,
    VERSION,
    Ask,
    Call,
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

TRIES = 3
"""Crashes of its process after which an order is given up."""
IDLE_S = 0.2
"""How often an idle agent looks whether an order's time has come."""
MOST_WAIT_S = 86_400.0
"""An order that is to start later than this was given before the machine last started: it starts now."""
Reply = tuple[Message, dict[str, AnyArray]]


class AgentSetup(NamedTuple):
    """How an agent runs."""

    listen: str
    workdir: Path
    keys: str | None = None
    """Directory that `keys new` made here: which lab machines may give orders."""
    bs_keys: str | None = None
    """Directory of this UE's keys for base stations."""
    insecure: bool = False


def run_agent(setup: AgentSetup, ready: Callable[[str], None], say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        BadInput: an address, keys or folder that cannot be used, or a folder that another agent has.
    """
    require_keys([check_address(setup.listen)], setup.keys, setup.insecure)
    with held(setup.workdir, f"another agent has {setup.workdir}"):
        asyncio.run(_serve(Agent(setup, say), setup, ready))


async def _serve(agent: Agent, setup: AgentSetup, ready: Callable[[str], None]) -> None:
    keys = load_server(Path(setup.keys)) if setup.keys else None
    link = ZmqServerLink(setup.listen, keys=keys, frame_bytes=FRAME_BYTES)
    try:
        working = asyncio.ensure_future(together([agent.listen(link), agent.work()]))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, working.cancel)
        ready(link.addresses[0])
        with contextlib.suppress(asyncio.CancelledError):
            await working
    finally:
        link.close()


class Agent:
    """Takes messages in, and does what they order."""

    def __init__(self, setup: AgentSetup, say: Callable[[str], None]) -> None:
        self._setup, self._say = setup, say
        self._files, self._shelf = Files(setup.workdir), Shelf(setup.workdir)
        self._running: str | None = None
        self._wake = asyncio.Event()

    async def listen(self, link: ZmqServerLink) -> None:
        """Answer every message."""
        while True:
            peer, frames = await link.recv()
            try:
                packet = decode_order(frames)
                reply, arrays = self.answer(packet.message, packet.arrays)
            except (ProtocolError, BadInput, OSError) as exc:
                reply, arrays = Refused(reason=" ".join(str(exc).split())[:500]), {}
            await link.send(peer, encode(reply, arrays))

    def answer(self, message: Orders, arrays: dict[str, AnyArray]) -> Reply:
        """What is answered to one message.

        Raises:
            BadInput: it cannot be taken.
            OSError: the disk does not do what it should.
        """
        if isinstance(message, Call):
            if message.version != VERSION:
                raise BadInput(f"orders of version {message.version}; this agent takes {VERSION}")
            return self._standing(message.token), {}
        if isinstance(message, Put):
            if set(arrays) != {DATA}:
                raise BadInput(f"a chunk comes in one array, {DATA}")
            return self._files.put(message, arrays[DATA]), {}
        if isinstance(message, Order):
            return self._take(message), {}
        kept = self._shelf.get(message.id)
        if isinstance(message, Get):
            if kept is None:
                raise BadInput(f"no order {message.id} here")
            data = chunk_of(kept, message)
            return Chunk(id=message.id, name=message.name, offset=message.offset), {DATA: data}
        if isinstance(message, Drop):
            self._shelf.drop(message.id)
        else:
            assert isinstance(message, Ask)
        return self._state(message.id), {}

    def _standing(self, token: int) -> Standing:
        return Standing(
            version=VERSION, token=token, time_s=time.perf_counter(), host=platform.node()[:200], testbed=__version__,
            free_bytes=free_bytes(self._setup.workdir), waiting=len(self._shelf.waiting()),
        )  # fmt: skip

    def _take(self, order: Order) -> State:
        """Take an order on; one that failed before is tried again."""
        if isinstance(order.what, Running):
            grounded(order.what.config, self._files)
        else:
            check_reach(order.what.bs)
        kept = self._shelf.add(order)
        ended = kept.ended()
        if ended is not None and ended["state"] == "failed":
            kept.again()
        self._wake.set()
        return self._state(order.id)

    def _state(self, name: str) -> State:
        kept = self._shelf.get(name)
        return State(id=name, state="unknown") if kept is None else state_of(kept, self._running == name)

    # ------------------------------------------------------------ orders

    async def work(self) -> None:
        """Carry out what waits, oldest first, for ever."""
        while True:
            due = [kept for kept in self._shelf.waiting() if _due(kept)]
            if due:
                await self._carry_out(due[0])
                continue
            self._wake.clear()
            if not self._shelf.waiting():
                await self._wake.wait()
                continue
            with contextlib.suppress(asyncio.TimeoutError):
                await within(IDLE_S, self._wake.wait())

    async def _carry_out(self, kept: StoredOrder) -> None:
        name = kept.order.id
        self._say(f"order {name}")
        self._running, began_s = name, time.perf_counter()
        try:
            code, said = await self._child(name)
        finally:
            self._running = None
        if code == 0:
            self._end(kept, "done", "", began_s)
        elif code > 0:
            self._end(kept, "failed", said or f"exit code {code}", began_s)
        elif kept.crashed() >= TRIES:
            self._end(kept, "failed", f"its process ended by signal {-code}, {TRIES} times", began_s)

    async def _child(self, name: str) -> tuple[int, str]:
        """A process that does it; its exit code (negative: a signal ended it) and the last line that it said."""
        setup = self._setup
        arguments = ["ue", "agent", "--workdir", str(setup.workdir), "--carry-out", name]
        arguments += ["--bs-keys", setup.bs_keys] if setup.bs_keys else []
        arguments += ["--insecure"] if setup.insecure else []
        process = await asyncio.create_subprocess_exec(
            *command(*arguments), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE, env=environment(), limit=2**20,
        )  # fmt: skip
        said = ""
        try:
            assert process.stderr is not None
            async for line in process.stderr:
                if text := line.decode(errors="replace").strip():
                    said = text
                    self._say(f"    {said}")
            return await process.wait(), said.removeprefix("testbed: ")[:500]
        finally:
            await _stop(process)

    def _end(self, kept: StoredOrder, state: str, note: str, began_s: float) -> None:
        files: list[Any] = []
        if state == "done":
            (kept.result / JOURNAL).unlink(missing_ok=True)
            try:
                files = result_files(kept.result)
            except TestbedError as exc:
                state, note = "failed", str(exc)
        self._say(f"order {kept.order.id}: {state} {note}".rstrip())
        kept.end({"state": state, "note": note, "began_s": began_s, "ended_s": time.perf_counter(), "files": files})


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Have a process end, if it has not."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await within(STOP_S, process.wait())
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()


def _due(kept: StoredOrder) -> bool:
    """Whether an order's time has come."""
    return not 0 < kept.order.start_s - time.perf_counter() < MOST_WAIT_S
