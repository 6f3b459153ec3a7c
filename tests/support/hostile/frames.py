"""Frames of a message, and malformed ones: bytes changed, headers that contradict their arrays, and noise."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from testbed.protocols.codec import encode
from testbed.protocols.messages import Message

Frames = list[bytes]
SIZES = (0, 1, 2, 5, 255, 256, 4095, 2**31 - 1, 2**62, 2**64 - 1, -1, -(2**63))
ARRAYS = ("ids", "hidden", "q", "scale", "token", "target", "positions", "data", "pad", "", "ids ", "__class__")
DTYPES = ("i4", "f2", "f4", "u1", "u2", "i8", "O", "<i4", "f8", "", "object")
PICKLE = b"cposix\n_exit\n(I1\ntR."
"""A pickle that ends the process if it is loaded."""


def header_of(message: Message) -> list[Any]:
    """A message as the list that is its header, with all fields."""
    found: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    return found


def with_arrays(header: Sequence[Any], arrays: Mapping[str, Any]) -> Frames:
    """A header, whose last field lists the arrays, with those arrays."""
    listed, *payload = encode(Message(), arrays)
    described = msgspec.msgpack.decode(listed)[1:] or [[]]
    return [msgspec.msgpack.encode([*header[:-1], *described]), *(bytes(frame) for frame in payload)]


def patched(rng: random.Random, frames: Sequence[bytes]) -> Frames:
    """A message with bytes changed, removed or inserted."""
    found = [bytearray(frame) for frame in frames]
    for _ in range(rng.randint(1, 4)):
        frame = rng.choice(found)
        at = rng.randrange(len(frame) + 1)
        frame[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return [bytes(frame) for frame in found]


def lying(rng: random.Random, header: Sequence[Any]) -> Frames:
    """A header, whose last field lists the arrays, with a list that does not match what follows."""
    count = rng.randrange(5)
    listed = [[rng.choice(ARRAYS), rng.choice(DTYPES), rng.choices(SIZES, k=rng.randrange(4))] for _ in range(count)]
    payload = [rng.choice([b"", PICKLE, rng.randbytes(rng.randrange(64)), bytes(4096)]) for _ in range(count)]
    return [msgspec.msgpack.encode([*header[:-1], listed]), *payload]


def noise(rng: random.Random) -> Frames:
    """Random bytes."""
    return [rng.randbytes(rng.choice([0, 1, 8, 100, 5000])) for _ in range(rng.randint(1, 7))]


def arrays(rng: random.Random) -> dict[str, Any]:
    """Well-formed arrays of any names, dtypes and shapes."""
    return {name: _array(rng) for name in rng.sample(ARRAYS, rng.randrange(4))}


def _array(rng: random.Random) -> Any:
    dtype = rng.choice(["<i4", "<f2", "<f4", "|u1", "<u2"])
    shape = tuple(rng.choice([0, 1, 2, 7, 300]) for _ in range(rng.randrange(3)))
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.randbytes(size), dtype).reshape(shape)
