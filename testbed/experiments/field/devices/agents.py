"""The lab machine's side of agents: orders out, files there, results back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from testbed.channel.access import require_keys
from testbed.channel.keys import load_client
from testbed.channel.link import ZmqLink, check_address, new_identity
from testbed.channel.measuring.offset import Handshake, Offset, clock_offset
from testbed.config import resolved
from testbed.errors import BadInput, LinkError, LinkTimeout, ProtocolError, TestbedError
from testbed.protocols.codec import AnyArray, Packet, encode
from testbed.protocols.messages import Message
from testbed.protocols.orders import (
    DATA,
    MAX_CHUNK_BYTES,
    VERSION,
    Ask,
    Call,
    Chunk,
    Drop,
    File,
    Get,
    Order,
    Probing,
    Put,
    Refused,
    Running,
    Standing,
    State,
    Stored,
    check_name,
    decode_report,
    digest_of,
    order_id,
)

TIMEOUT_S = 30.0
"""Longest wait for an answer; every question may be asked again."""
RESEND_S = 2.0
POLL_S = 1.0
"""Between questions how an order stands: a few hundred bytes on the same link as the run."""
GREETINGS = 8
R = TypeVar("R", bound=Message)


class AgentConnection:
    """A connection to one agent; a loop of its own, so that callers need none.

    Args:
        keys: directory that `keys new --ue` made where the agent is; None: none.

    Raises:
        BadInput: an address or keys that cannot be used, or an agent of another version.
        LinkError: nobody answers.
    """

    def __init__(self, address: str, keys: str | None, insecure: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        require_keys([check_address(address)], keys, insecure)
        self.address, self._timeout_s = address, timeout_s
        found = load_client(Path(keys)) if keys else None
        self._loop = asyncio.new_event_loop()
        self._link = self._loop.run_until_complete(_link(address, found))
        try:
            greetings = [self._greet(token) for token in range(GREETINGS)]
        except BaseException:
            self.close()
            raise
        self.standing: Standing = greetings[-1][1]
        self.offset: Offset = clock_offset([handshake for handshake, _ in greetings])

    def close(self) -> None:
        """Let go of it; it goes on with what it was told."""
        self._link.close()
        self._loop.close()

    def _greet(self, token: int) -> tuple[Handshake, Standing]:
        sent_s = time.perf_counter()
        packet = self._ask(Call(version=VERSION, token=token), Standing, lambda found: found.token == token)
        return Handshake(sent_s, packet.message.time_s, time.perf_counter()), packet.message

    # ------------------------------------------------------------ files

    def put(self, name: str, path: Path, told: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Put a file there, from where an earlier attempt broke off; one that is there already is left.

        Raises:
            BadInput: a file that cannot be read, or that the agent has no room for.
            LinkError: the agent fell silent.
        """
        try:
            total, digest = path.stat().st_size, digest_of(path)
            with path.open("rb") as file:
                there = self._stored(name, 0, total, digest, b"")
                while there < total:
                    file.seek(there)
                    there = self._stored(name, there, total, digest, file.read(MAX_CHUNK_BYTES))
                    told(there, total)
        except OSError as exc:
            raise BadInput(f"cannot read {path}: {exc.strerror or exc}") from exc

    def _stored(self, name: str, offset: int, total: int, digest: str, data: bytes) -> int:
        message = Put(name=check_name(name), offset=offset, total=total, digest=digest)
        arrays: dict[str, AnyArray] = {DATA: np.frombuffer(data, np.uint8)}
        return int(self._ask(message, Stored, lambda found: found.name == name, arrays).message.size)

    # ------------------------------------------------------------ orders

    def order(self, order: Order) -> State:
        """Give an order; the same one again changes nothing.

        Raises:
            BadInput: the agent refuses it.
        """
        found: State = self._ask(order, State, lambda state: state.id == order.id).message
        return found

    def state(self, name: str) -> State:
        """How an order stands."""
        found: State = self._ask(Ask(id=name), State, lambda state: state.id == name).message
        return found

    def wait(self, name: str, told: Callable[[State], None] = lambda state: None) -> State:
        """Wait until an order is done; an agent that falls silent for a while is waited for.

        Raises:
            TestbedError: it failed, or the agent knows nothing of it.
            LinkError: the agent has been silent for ten times the time that an answer may take.
        """
        heard_s = time.monotonic()
        while True:
            try:
                state = self.state(name)
            except LinkTimeout:
                if time.monotonic() - heard_s > 10 * self._timeout_s:
                    raise
                continue
            heard_s = time.monotonic()
            told(state)
            if state.state == "done":
                return state
            if state.state in ("failed", "unknown"):
                raise TestbedError(f"{self.address}: order {name} {state.state}: {state.note or 'it was lost'}")
            time.sleep(POLL_S)

    def fetch(self, state: State, out: Path) -> None:
        """Bring an order's results here, each file checked; `summary.json` comes last, so that it means a whole run.

        Raises:
            LinkError: the agent fell silent.
            ProtocolError: a file did not come as it was announced.
        """
        out.mkdir(parents=True, exist_ok=True)
        for file in sorted(state.files, key=lambda file: file.name == "summary.json"):
            self._fetch(state.id, file, out)

    def _fetch(self, name: str, file: File, out: Path) -> None:
        path = out / check_name(file.name)
        if path.is_file() and digest_of(path) == file.digest:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        with part.open("wb") as target:
            while target.tell() < file.size:
                target.write(self._chunk(name, file, target.tell()))
        if digest_of(part) != file.digest:
            part.unlink()
            raise ProtocolError(f"{file.name} of order {name} did not come as it was announced")
        part.replace(path)

    def _chunk(self, name: str, file: File, offset: int) -> bytes:
        def same(found: Chunk) -> bool:
            return (found.id, found.name, found.offset) == (name, file.name, offset)

        packet = self._ask(Get(id=name, name=file.name, offset=offset), Chunk, same)
        data = packet.arrays.get(DATA)
        if data is None or data.dtype != np.uint8 or not 0 < data.size <= min(MAX_CHUNK_BYTES, file.size - offset):
            raise ProtocolError(f"{file.name} of order {name}: a chunk that is none")
        return data.tobytes()

    def drop(self, name: str) -> None:
        """Tell the agent that an order's results may go."""
        self._ask(Drop(id=name), State, lambda state: state.id == name)

    # ------------------------------------------------------------ asking

    def _ask(
        self, message: Message, kind: type[R], same: Callable[[R], bool], arrays: dict[str, AnyArray] | None = None
    ) -> Packet[Any]:
        return self._loop.run_until_complete(self._asked(message, kind, same, arrays or {}))

    async def _asked(
        self, message: Message, kind: type[R], same: Callable[[R], bool], arrays: dict[str, AnyArray]
    ) -> Packet[Any]:
        """Send until something answers just this; every message may come twice without harm."""
        end_s = time.monotonic() + self._timeout_s
        wait_s = RESEND_S
        while (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(LinkError):
                await self._link.send(encode(message, arrays))
                if (packet := await self._answer(kind, same, min(wait_s, left_s))) is not None:
                    return packet
            wait_s *= 2
        raise LinkTimeout(f"the agent at {self.address} did not answer within {self._timeout_s:g} s; is it running?")

    async def _answer(self, kind: type[R], same: Callable[[R], bool], wait_s: float) -> Packet[Any] | None:
        end_s = time.monotonic() + wait_s
        while (left_s := end_s - time.monotonic()) > 0:
            received = await self._link.recv(left_s)
            with contextlib.suppress(ProtocolError):  # what cannot be read is dropped
                packet = decode_report(received.frames)
                if isinstance(packet.message, Refused):
                    raise BadInput(f"the agent at {self.address} refuses: {packet.message.reason}")
                if isinstance(packet.message, kind) and same(packet.message):
                    return packet
        return None


async def _link(address: str, keys: Any) -> ZmqLink:
    return ZmqLink(address, new_identity(), keys)


def probe_order(name: str, what: Probing) -> Order:
    """A measurement: every one is an order of its own."""
    return Order(id=order_id(name, "link", str(time.time_ns()), config={}), what=what)


def run_order(name: str, what: Running) -> Order:
    """A run: the same configuration is the same order, wherever its channel state begins."""
    said = msgspec.structs.replace(what, link=None)
    config = {"config": resolved(said.config), "trace": said.trace}
    return Order(id=order_id(name, config=config), what=what)
