"""Messages between a lab machine and a UE's agent; the frames are those of `protocols.codec`.

An order holds a run configuration and names files that were put under the agent's own folder; no message names a
command or a path elsewhere. Files travel in chunks of `MAX_CHUNK_BYTES` with their offsets, and a file counts as stored
once the digest of the whole matches.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import msgspec

from testbed.channel.frames import Frames
from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.protocols.codec import Packet, decode
from testbed.protocols.messages import Message

VERSION = 2
"""Version of these messages."""
MAX_CHUNK_BYTES = 2**20
MAX_FILE_BYTES = 64 * 2**30
MAX_ORDERS, MAX_FILES = 10_000, 10_000
"""Most orders and uploaded files that an agent keeps."""
MAX_DIGESTS = 256
"""Most files that an order names."""
MAX_RESULT_FILES = 16
"""Most files in the result of an order."""
CANCELLED = "cancelled"
"""Note of a cancelled order, which is a failed one to lab machines that do not know `Cancel`."""
DATA = "data"
"""The array that holds a chunk: u1 [n]."""
FRAME_BYTES = MAX_CHUNK_BYTES + 4096

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
Name = Annotated[str, msgspec.Meta(pattern=rf"\A{_PART}(/{_PART}){{0,3}}\Z", max_length=255)]
"""Name of a file, below a folder of the agent."""
Id = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,199}\Z")]
"""Id of an order."""
Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Probing(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A measurement of the link to a base station."""

    bs: str
    iperf3: str | None
    seconds: Annotated[int, msgspec.Meta(ge=1, le=600)]
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    timeout_s: Seconds


class Running(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run of a UE. Paths in the configuration are names of files that were put; `csi` may be `link`."""

    config: RunConfig
    link: Id | None = None
    """Order whose measurement gives the first channel state, for `csi` link."""
    trace: Name | None = None
    """Trace to replay between the UE and the base station; None: the link itself."""
    digests: Annotated[dict[Name, Digest], msgspec.Meta(max_length=MAX_DIGESTS)] = {}
    """Digests of all files that the run reads, by name: it fails if one is another file when the run starts. Empty, as
    from lab machines that know none: files are not compared.
    """


# ---------------------------------------------------------------- lab machine → agent


class Call(Message, frozen=True):
    """Query for an agent's state; answered by `Standing`."""

    version: int
    token: int


class Put(Message, frozen=True):
    """A chunk of a file; frame `data`: u1 [n]. Answered by `Stored`; without data, a query for the stored size."""

    name: Name
    offset: Size
    total: Size
    digest: Digest
    """Digest of the whole file."""


class Order(Message, frozen=True):
    """A measurement or a run; an order sent again is done once. Answered by `State`."""

    id: Id
    what: Union[Probing, Running]  # noqa: UP007 (msgspec reads it at run time, on 3.10 too)
    start_s: float = 0.0
    """Earliest start, on the agent's monotonic clock."""


class Ask(Message, frozen=True):
    """Query for the state of an order; answered by `State`."""

    id: Id


class Get(Message, frozen=True):
    """Request for a chunk of an order's result; answered by `Chunk`."""

    id: Id
    name: Name
    offset: Size


class Drop(Message, frozen=True):
    """An order's results were collected and may be deleted; answered by `State`."""

    id: Id


class Cancel(Message, frozen=True):
    """Cancels a lab machine's (key's) unfinished orders whose ids begin with `prefix`; answered by `Cancelled`."""

    prefix: Id


# ---------------------------------------------------------------- agent → lab machine


class Standing(Message, frozen=True):
    """State of an agent."""

    version: int
    token: int
    time_s: float
    """Time on its monotonic clock, from which the offset of both clocks is estimated."""
    host: str
    testbed: str
    free_bytes: int
    waiting: Number
    """Number of orders not done yet."""


class Stored(Message, frozen=True):
    """Number of bytes stored of a file; if all, its digest matched."""

    name: str
    size: int


class File(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file of a result."""

    name: Name
    size: Size
    digest: Digest


class State(Message, frozen=True):
    """State of an order; `files` once it is done."""

    id: str
    state: Literal["unknown", "waiting", "running", "done", "failed"]
    note: str = ""
    """Why it failed; `CANCELLED` if it was cancelled."""
    began_s: float = 0.0
    """Start and end on the agent's monotonic clock."""
    ended_s: float = 0.0
    files: tuple[File, ...] = ()


class Cancelled(Message, frozen=True):
    """Number of its orders that were cancelled, now or before, and whose ids begin with `prefix`."""

    prefix: str
    count: Number


class Chunk(Message, frozen=True):
    """A chunk of a result; frame `data`: u1 [n]."""

    id: str
    name: str
    offset: int


class Refused(Message, frozen=True):
    """A refused message, and why."""

    reason: str


Orders = Union[Call, Put, Order, Ask, Get, Drop, Cancel]  # noqa: UP007
Reports = Union[Standing, Stored, State, Cancelled, Chunk, Refused]  # noqa: UP007

_ORDERS: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Orders, strict=True)
_REPORTS: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Reports, strict=True)


def decode_order(frames: Frames) -> Packet[Any]:
    """Decode what a lab machine sent. Raises ProtocolError on anything else."""
    return decode(frames, _ORDERS, "order")


def decode_report(frames: Frames) -> Packet[Any]:
    """Decode what an agent sent. Raises ProtocolError on anything else."""
    return decode(frames, _REPORTS, "report")


def digest_of(path: Path) -> str:
    """Digest of a file's content."""
    digest: str = hash_of(path).hexdigest()
    return digest


def hash_of(path: Path | None = None) -> hashlib.blake2b:
    """Hash of a file's content, to be continued; None: of no content."""
    found = hashlib.blake2b(digest_size=16)
    if path is not None:
        with path.open("rb") as file:
            while block := file.read(2**20):
                found.update(block)
    return found


def check_name(name: str) -> str:
    """Return the name if a file below an agent's folder can have it.

    Raises:
        BadInput: it cannot.
    """
    if not re.fullmatch(rf"{_PART}(/{_PART}){{0,3}}", name) or len(name) > 255:
        raise BadInput(f"bad file name {name!r}; use letters, digits, '.', '-' and '_', in at most 3 folders")
    return name


def order_id(*parts: str, config: Mapping[str, Any]) -> str:
    """Id of an order: its subject, and a digest of its configuration, so that different orders have different ids."""
    text = msgspec.json.encode(config, order="deterministic")
    return "-".join([*parts, hashlib.blake2b(text, digest_size=5).hexdigest()])
