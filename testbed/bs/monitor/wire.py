"""What a base station's process and that of its live view say to each other, over a pair of sockets.

A frame is its length as 4 bytes, little-endian, and a MessagePack document. The live view asks; the base station
answers in that order, and says when it begins to serve and when it ends.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import msgspec

LENGTH_BYTES = 4


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


class MonitorSetup(_Message, frozen=True):
    """First of all: how to serve."""

    host: str
    """That it listens on, as it was given."""
    token: str | None
    """What clients must say; None: nothing."""


class MonitorServing(_Message, frozen=True):
    """The base station serves from now on, and can be asked."""

    about: dict[str, str]
    """What it serves: model, engine, scheduler, judge."""
    text: bool = False
    """Whether rounds hold the tokens that were committed."""
    tokenizer: str | None = None
    """File of the target's, for text; None: there is none, and ids are shown."""


class MonitorClosing(_Message, frozen=True):
    """It serves no more."""


class MonitorAnswer(_Message, frozen=True):
    """To the question of this number."""

    number: int
    cpu_s: float
    """That answering took."""
    found: msgspec.Raw
    """None: it failed."""


class LookAt(_Message, frozen=True):
    """What happened after the round and the pass of these numbers, and how do things stand? Answered by a `Look`."""

    number: int
    rounds: int
    passes: int


class Count(_Message, frozen=True):
    """What is counted? Answered by `Counted`."""

    number: int


class Live(_Message, frozen=True):
    """Does the event loop run? Answered by true."""

    number: int


Question: TypeAlias = LookAt | Count | Live
Notice: TypeAlias = MonitorSetup | MonitorServing | MonitorClosing | MonitorAnswer
"""What the base station says."""


def frame(message: Question | Notice) -> bytes:
    """A message as it goes over."""
    document = msgspec.msgpack.encode(message)
    return len(document).to_bytes(LENGTH_BYTES, "little") + document


async def receive(reader: asyncio.StreamReader, kinds: Any) -> Any:
    """The next message, one of `kinds`.

    Raises:
        EOFError: the other side is gone.
    """
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
        document = await reader.readexactly(length)
    except ConnectionError as exc:
        raise EOFError from exc
    return msgspec.msgpack.decode(document, type=kinds)
