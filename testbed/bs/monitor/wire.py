"""Messages between a base station's process and that of its live view, over a pair of sockets.

A frame is its length as 4 bytes, little-endian, and a MessagePack document. The live view asks questions; the base
station answers them in order, and sends a notice when it begins to serve and when it ends.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import msgspec

LENGTH_BYTES = 4


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


class MonitorSetup(_Message, frozen=True):
    """First message: how to serve."""

    host: str
    """Host that the live view listens on, as configured."""
    token: str | None
    """Token that clients must present; None: none."""


class MonitorServing(_Message, frozen=True):
    """The base station serves and answers questions."""

    about: dict[str, str]
    """Model, engine, scheduler and judge."""
    text: bool = False
    """Whether rounds hold the committed tokens."""
    tokenizer: str | None = None
    """Path of the target's tokenizer, for text; None: ids are shown."""


class MonitorClosing(_Message, frozen=True):
    """The base station serves no more."""


class MonitorAnswer(_Message, frozen=True):
    """The answer to a question."""

    number: int
    """Number of the question."""
    cpu_s: float
    """CPU time of the answer."""
    found: msgspec.Raw
    """Encoded answer; of None: it failed."""


class LookAt(_Message, frozen=True):
    """Rounds and passes after these numbers, and all sessions; answered by `RecentActivity`."""

    number: int
    rounds: int
    passes: int


class Count(_Message, frozen=True):
    """All counters; answered by `Counted`."""

    number: int


class Live(_Message, frozen=True):
    """Whether the event loop runs; answered by the names of background tasks that fail."""

    number: int


Question: TypeAlias = LookAt | Count | Live
Notice: TypeAlias = MonitorSetup | MonitorServing | MonitorClosing | MonitorAnswer
"""Messages of the base station."""


def frame(message: msgspec.Struct) -> bytes:
    """A message as a frame."""
    document = msgspec.msgpack.encode(message)
    return len(document).to_bytes(LENGTH_BYTES, "little") + document


async def receive(reader: asyncio.StreamReader, kinds: Any, most_bytes: int | None = None) -> Any:
    """The next message, one of `kinds`.

    Args:
        most_bytes: its length, at most; None: any.

    Raises:
        EOFError: the other side is gone.
        DecodeError: of msgspec: none of `kinds`, or too long.
    """
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
        if most_bytes is not None and length > most_bytes:
            raise msgspec.DecodeError(f"a message of {length} bytes")
        document = await reader.readexactly(length)
    except ConnectionError as exc:
        raise EOFError from exc
    return msgspec.msgpack.decode(document, type=kinds)
