"""Client of a UE's agent: uploads files, gives orders and fetches results."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from testbed.channel.access import check_address, require_keys
from testbed.channel.keys import load_client
from testbed.channel.link import ZmqLink, new_identity
from testbed.channel.measuring.offset import Handshake, Offset, clock_offset
from testbed.errors import AgentError, BadInput, LinkError, LinkTimeout, ProtocolError, TestbedError
from testbed.experiments.field.devices.arrived import one_line
from testbed.files import whole_file
from testbed.protocols.codec import AnyArray, Packet, encode
from testbed.protocols.messages import Message
from testbed.protocols.orders import (
    DATA,
    MAX_CHUNK_BYTES,
    MAX_RESULT_FILES,
    VERSION,
    Ask,
    Call,
    Cancel,
    Cancelled,
    Chunk,
    Drop,
    File,
    Get,
    Order,
    Put,
    Refused,
    Standing,
    State,
    Stored,
    check_name,
    decode_report,
    digest_of,
)

TIMEOUT_S = 30.0
"""Timeout of an answer; every message may be sent again."""
RESEND_S, PATIENCE = 2.0, 3.0
"""Time until a message is sent again: at least, and in multiples of the time that the last one of its kind took."""
HASH_BYTES_PER_S = 50e6
"""Assumed pace at which an agent hashes a file that it has: that of an SD card."""
SPARE_BYTES, SLOWEST = 2**28, 2**15
"""Disk space that results must leave free, and the least pace at which they must come [bytes/s]."""
POLL_S = 1.0
"""Interval of polling an order's state: a few hundred bytes on the same link as the run."""
GREETINGS = 8
"""Number of handshakes to estimate the clock offset."""
MOST_CLOCK_S = 1e12
"""Largest time of an agent's clock, either way."""
RESTARTS = 3
"""Number of times that an upload may begin again, at most: an agent discards a file whose digest differs."""
MOST_ANSWERS = 8
"""Messages of an agent that may wait: it is asked one thing at a time, and not for seconds while an order runs."""
R = TypeVar("R", bound=Message)


class AgentConnection:
    """Synchronous connection to one agent, with its own event loop.

    Args:
        keys: directory made by `keys new --ue` on the agent's machine; None: no keys.

    All methods raise `LinkError` if the agent does not answer, and `AgentError` if it refuses, or answers wrongly.

    Raises:
        BadInput: an unusable address or keys.
        LinkError: the agent does not answer.
        AgentError: an agent of another version, or with an impossible clock.
    """

    def __init__(self, address: str, keys: str | None, insecure: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        require_keys([check_address(address)], keys, insecure)
        self.address, self._timeout_s = address, timeout_s
        found = load_client(Path(keys)) if keys else None
        self._loop = asyncio.new_event_loop()
        self._took_s: dict[type[Message], float] = {}
        """Time until the last message of each kind was answered."""
        self._link = self._loop.run_until_complete(_link(address, found))
        try:
            self.synchronise()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the agent continues with its orders."""
        self._link.close()
        self._loop.close()

    def _greet(self, token: int) -> tuple[Handshake, Standing]:
        sent_s = time.perf_counter()
        packet = self._ask(Call(version=VERSION, token=token), Standing, lambda found: found.token == token)
        if not abs(packet.message.time_s) <= MOST_CLOCK_S:
            raise AgentError(f"the clock of the agent at {self.address} cannot be used: {packet.message.time_s:g} s")
        return Handshake(sent_s, packet.message.time_s, time.perf_counter()), packet.message

    def synchronise(self) -> None:
        """Ask how the agent stands, and measure the offset of its clock, which begins anew with its machine."""
        greetings = [self._greet(token) for token in range(GREETINGS)]
        self.standing: Standing = greetings[-1][1]
        try:
            self.offset: Offset = clock_offset([handshake for handshake, _ in greetings])
        except BadInput as exc:
            raise AgentError(f"the clock of the agent at {self.address} cannot be used: {exc}") from exc

    # ------------------------------------------------------------ files

    def put(self, name: str, path: Path) -> None:
        """Upload a file, resuming a partial upload; a file that exists unchanged is skipped.

        Raises:
            BadInput: an unreadable file.
            AgentError: not enough disk space on the agent, or it does not store what it is sent.
        """
        restarts = 0
        try:
            total, digest = path.stat().st_size, digest_of(path)
            with path.open("rb") as file:
                there = self._stored(name, 0, total, digest, b"")
                while there < total:
                    file.seek(there)
                    data = file.read(MAX_CHUNK_BYTES)
                    before, there = there, self._stored(name, there, total, digest, data)
                    restarts += there < before + len(data)
                    if restarts > RESTARTS:
                        raise AgentError(f"the agent at {self.address} does not store {name}")
        except OSError as exc:
            raise BadInput(f"cannot read {path}: {exc.strerror or exc}") from exc

    def _stored(self, name: str, offset: int, total: int, digest: str, data: bytes) -> int:
        message = Put(name=check_name(name), offset=offset, total=total, digest=digest)
        arrays: dict[str, AnyArray] = {DATA: np.frombuffer(data, np.uint8)}
        timeout_s = self._timeout_s + total / HASH_BYTES_PER_S

        copies = []

        def same(found: Stored) -> bool:
            if found.name == name and data and found.size == offset:  # answers a copy of the chunk before
                copies.append(found)
                return False
            return found.name == name

        try:
            return max(0, int(self._ask(message, Stored, same, arrays, timeout_s).message.size))
        except LinkTimeout as exc:
            raise AgentError(f"the agent at {self.address} does not store {name}") if copies else exc from None

    # ------------------------------------------------------------ orders

    def order(self, order: Order) -> State:
        """Give an order; repeating it changes nothing.

        Raises:
            AgentError: the agent refuses it.
        """
        found: State = self._ask(order, State, lambda state: state.id == order.id).message
        return found

    def state(self, name: str) -> State:
        """State of an order."""
        found: State = self._ask(Ask(id=name), State, lambda state: state.id == name).message
        return found

    def states(self, name: str) -> Iterator[State]:
        """States of an order until it is done, the last one included, tolerating interruptions of the connection.

        Raises:
            AgentError: the order failed, or the agent does not know it.
            LinkError: the agent did not answer for ten times the timeout.
        """
        heard_s = time.monotonic()
        while True:
            try:
                state = self.state(name)
            except LinkTimeout as exc:
                if (silent_s := time.monotonic() - heard_s) > 10 * self._timeout_s:
                    raise LinkTimeout(f"the agent at {self.address} did not answer for {silent_s:.0f} s") from exc
                continue
            if state.state in ("failed", "unknown"):
                raise AgentError(f"{self.address}: order {name} {state.state}: {one_line(state.note) or 'it was lost'}")
            yield state
            if state.state == "done":
                return
            time.sleep(POLL_S)
            heard_s = time.monotonic()

    def fetch(self, state: State, out: Path, most: int) -> None:
        """Download an order's results, at most `most` bytes, and verify their digests; what is there stays.

        Raises:
            AgentError: files that are too many, too large, slower than `SLOWEST`, not as announced, or not writable.
        """
        size = sum(file.size for file in state.files)
        out.mkdir(parents=True, exist_ok=True)
        room = min(most, shutil.disk_usage(out).free - SPARE_BYTES)
        if size > room or len(state.files) > MAX_RESULT_FILES:
            raise AgentError(
                f"{self.address}: order {state.id} has {len(state.files)} files of {size} bytes; at most "
                f"{MAX_RESULT_FILES} of {room} bytes are fetched"
            )
        end_s = time.monotonic() + self._timeout_s + size / SLOWEST
        try:
            for file in state.files:
                self._fetch(state.id, file, out, end_s)
        except LinkError:
            raise
        except TestbedError as exc:
            raise AgentError(f"{self.address}: {exc}") from exc

    def _fetch(self, name: str, file: File, out: Path, end_s: float) -> None:
        path = out / check_name(file.name)
        if path.is_file() and digest_of(path) == file.digest:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as exc:  # a file has the name of another one's folder
            raise ProtocolError(f"{file.name} of order {name} cannot be stored: {exc.strerror or exc}") from exc
        with whole_file(path) as part:
            with part.open("wb") as target:
                while target.tell() < file.size:
                    if time.monotonic() > end_s:
                        raise AgentError(f"{file.name} of order {name} comes slower than {SLOWEST} bytes a second")
                    target.write(self._chunk(name, file, target.tell()))
            if digest_of(part) != file.digest:
                raise ProtocolError(f"{file.name} of order {name} was corrupted in transfer")

    def _chunk(self, name: str, file: File, offset: int) -> bytes:
        def same(found: Chunk) -> bool:
            return (found.id, found.name, found.offset) == (name, file.name, offset)

        packet = self._ask(Get(id=name, name=file.name, offset=offset), Chunk, same)
        data = packet.arrays.get(DATA)
        if data is None or data.dtype != np.uint8 or data.size != min(MAX_CHUNK_BYTES, file.size - offset):
            raise ProtocolError(f"{file.name} of order {name}: invalid chunk")
        return data.tobytes()

    def drop(self, name: str) -> None:
        """Delete an order and its results on the agent."""
        self._ask(Drop(id=name), State, lambda state: state.id == name)

    def cancel(self, prefix: str) -> int:
        """Cancel all unfinished orders whose ids begin with `prefix`, the running one included; its process ends within
        seconds. Returns how many orders with this prefix are cancelled.
        """
        return int(self._ask(Cancel(prefix=prefix), Cancelled, lambda found: found.prefix == prefix).message.count)

    # ------------------------------------------------------------ requests

    def _ask(
        self,
        message: Message,
        kind: type[R],
        same: Callable[[R], bool],
        arrays: dict[str, AnyArray] | None = None,
        timeout_s: float | None = None,
    ) -> Packet[Any]:
        asked = self._asked(message, kind, same, arrays or {}, timeout_s or self._timeout_s)
        return self._loop.run_until_complete(asked)

    async def _asked(
        self, message: Message, kind: type[R], same: Callable[[R], bool], arrays: dict[str, AnyArray], timeout_s: float
    ) -> Packet[Any]:
        """Send a message until its answer arrives; all messages are idempotent. On a slow link a message is sent again
        only after several times what its kind took last: copies take the time of what comes after them.
        """
        begun_s = time.monotonic()
        end_s = begun_s + timeout_s
        wait_s = max(RESEND_S, PATIENCE * self._took_s.get(type(message), 0.0))
        while (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(LinkError):
                await self._link.send(encode(message, arrays))
                if (packet := await self._answer(kind, same, min(wait_s, left_s))) is not None:
                    self._took_s[type(message)] = time.monotonic() - begun_s
                    return packet
            wait_s *= 2
        raise LinkTimeout(f"the agent at {self.address} did not answer within {timeout_s:g} s; is it running?")

    async def _answer(self, kind: type[R], same: Callable[[R], bool], wait_s: float) -> Packet[Any] | None:
        end_s = time.monotonic() + wait_s
        while (left_s := end_s - time.monotonic()) > 0:
            received = await self._link.recv(left_s)
            with contextlib.suppress(ProtocolError, BadInput):  # invalid messages are dropped
                packet = decode_report(received.frames)
                if isinstance(packet.message, Refused):
                    raise AgentError(f"the agent at {self.address} refuses: {one_line(packet.message.reason)}")
                if isinstance(packet.message, kind) and same(packet.message):
                    return packet
        return None


async def _link(address: str, keys: Any) -> ZmqLink:
    return ZmqLink(address, new_identity(), keys, waiting=MOST_ANSWERS)
