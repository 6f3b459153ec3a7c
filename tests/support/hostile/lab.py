"""Hostile lab machine: orders to an agent, uploads and queries, with extreme values, in any order, and malformed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from testbed.config import RunConfig
from testbed.protocols.codec import AnyArray, Packet
from testbed.protocols.messages import Message
from testbed.protocols.orders import (
    DATA,
    MAX_CHUNK_BYTES,
    VERSION,
    Ask,
    Call,
    Cancel,
    Drop,
    Get,
    Order,
    Orders,
    Probing,
    Put,
    Running,
    State,
    Stored,
)
from tests.support.hostile import frames
from tests.support.hostile.frames import Frames, header_of, with_arrays
from tests.support.hostile.values import Values

KINDS: tuple[type[Message], ...] = Orders.__args__  # type: ignore[attr-defined]
IDS = ("o-1", "o-2", "o-3")
NAMES = ("f", "g", "d/f", "d/e/f")
SIZES = (0, 1, 1000, 5000, MAX_CHUNK_BYTES + 1)
PIECES = (1, 700, 5000, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1)
NOWHERE = "tcp://127.0.0.1:1"


class Lab:
    """Generates messages, reproducible by seed and by what it hears."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"lab/{seed}")
        self._values = Values(self._rng, {"id": IDS, "name": NAMES, "bs": (NOWHERE, "tcp://127.0.0.1:*", "ipc:///x")})
        self._content, self._upload = b"", self._file()
        self._files: dict[str, tuple[str, ...]] = {}
        self._weights: dict[Callable[[], Frames], int] = {
            self._valid: 50, self._wild: 15, self._drawn: 15, self._patched: 8, self._lying: 6, self._noise: 3,
        }  # fmt: skip

    def frames(self) -> Frames:
        """The next message."""
        return self._rng.choices(list(self._weights), list(self._weights.values()))[0]()

    def hear(self, packet: Packet[Any]) -> None:
        """Learn from an answer."""
        message = packet.message
        if isinstance(message, Stored) and message.name == self._upload.name:
            self._upload = msgspec.structs.replace(self._upload, offset=min(message.size, len(self._content)))
        elif isinstance(message, State):
            self._files[message.id] = tuple(file.name for file in message.files)

    # ------------------------------------------------------------ valid messages

    def _file(self) -> Put:
        """The first chunk of another file."""
        rng = self._rng
        self._content = rng.randbytes(1) * rng.choice(SIZES)
        digest = hashlib.blake2b(self._content, digest_size=16).hexdigest()
        return Put(name=rng.choice(NAMES), offset=0, total=len(self._content), digest=digest)

    def _next(self) -> tuple[Message, Mapping[str, AnyArray]]:
        rng, kind = self._rng, self._rng.choice([Put, Put, *KINDS])
        if kind is Put:
            if self._upload.offset >= self._upload.total or rng.random() < 0.05:
                self._upload = self._file()
            piece = self._content[self._upload.offset :][: rng.choice(PIECES)]
            return self._upload, {DATA: np.frombuffer(piece, np.uint8)}
        name = rng.choice(IDS)
        if kind is Order:
            return Order(id=name, what=self._work()), {}
        if kind is Get:
            return Get(id=name, name=rng.choice([*self._files.get(name, ()), *NAMES]), offset=0), {}
        if kind is Call:
            return Call(version=VERSION, token=1), {}
        return (Cancel(prefix=name) if kind is Cancel else rng.choice([Ask, Drop])(id=name)), {}

    def _work(self) -> Probing | Running:
        rng = self._rng
        if rng.random() < 0.5:
            return Probing(NOWHERE, None, rng.choice([1, 600]), rng.choice([1, 10_000]), 0.1)
        config = RunConfig(bs=NOWHERE, drafter=rng.choice(NAMES), limit=1, methods=("greedy",), timeout_s=1.0)
        return Running(config, link=rng.choice([None, *IDS]), trace=rng.choice([None, *NAMES]))

    def _valid(self) -> Frames:
        message, arrays = self._next()
        return with_arrays(header_of(message), arrays)

    # ------------------------------------------------------------ invalid ones

    def _wild(self) -> Frames:
        """A valid message but for one field, which has an extreme value, within its bounds or beyond them."""
        message, arrays = self._next()
        names = [name for name in type(message).__struct_fields__ if name != "arrays"]
        header, at = header_of(message), self._rng.randrange(len(names))
        header[at + 1] = self._values.draw(type(message), names[at], self._rng.random() < 0.5)
        return with_arrays(header, arrays)

    def _drawn(self) -> Frames:
        """Any message with any fields, and well-formed arrays that have nothing to do with it."""
        wild = self._rng.choice([0.0, 0.0, 0.3])
        return with_arrays(self._values.message(self._rng.choice(KINDS), wild), frames.arrays(self._rng))

    def _patched(self) -> Frames:
        return frames.patched(self._rng, self._valid())

    def _lying(self) -> Frames:
        return frames.lying(self._rng, header_of(self._next()[0]))

    def _noise(self) -> Frames:
        return frames.noise(self._rng)
