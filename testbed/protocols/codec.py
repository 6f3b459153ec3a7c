"""Wire codec: a message and its arrays to ZeroMQ frames and back; everything that comes in is bounded and checked.

Headers are as short as msgpack allows without loss: fields at the end that have their default values are left out,
whole numbers are integers, and other numbers have single precision where that is exact.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.channel.cost import position_bits
from testbed.channel.csi import Csi, single
from testbed.errors import BadInput, ProtocolError
from testbed.protocols.messages import Array, Downlink, Message, NeedHidden, Uplink

AnyArray = NDArray[Any]
Frames = Sequence[bytes | memoryview]

DTYPES = {name: np.dtype(f"<{name}") for name in ("i4", "f2", "f4", "u1", "u2")}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_HEADER_BYTES = 4096
MAX_ARRAY_BYTES = 64 * 2**20
MAX_ARRAYS = 4
PAD = "pad"
"""An array of this name only takes up room on the link: it is checked like any other, and dropped where it arrives."""

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Packet(Generic[M]):
    """A decoded message, its arrays by name, and its size on the link."""

    message: M
    arrays: dict[str, AnyArray]
    size_bytes: int


SINGLE = struct.Struct(">cf")
"""A float32 of msgpack: its type byte, and the number."""
LARGEST_WHOLE = 2**31
"""Whole numbers below it take no more bytes as integers than in single precision."""
_ENCODER = msgspec.msgpack.Encoder()
_UPLINK: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Uplink, strict=True)
_DOWNLINK: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Downlink, strict=True)


def encode(message: Message, arrays: Mapping[str, AnyArray] | None = None) -> list[bytes | memoryview]:
    """Frames of a message: the header, then one frame an array (C order, little-endian).

    Raises:
        ValueError: an array whose dtype does not travel.
    """
    if not arrays:
        return [_header(message)]
    specs, frames = [], []
    for name, array in arrays.items():
        if array.dtype not in _NAMES:
            raise ValueError(f"array {name!r}: dtype {array.dtype} does not travel; use one of {', '.join(DTYPES)}")
        specs.append(Array(name, _NAMES[array.dtype], array.shape))
        frames.append(np.ascontiguousarray(array).tobytes())
    return [_header(msgspec.structs.replace(message, arrays=tuple(specs))), *frames]


def _header(message: Message) -> bytes:
    return _ENCODER.encode(_fields(message, [message.__struct_config__.tag]))


def _fields(message: msgspec.Struct, before: Sequence[Any] = ()) -> list[Any]:
    """`before` and the fields of a message or channel state, less those at the end that have their default values."""
    values, (defaults, places) = [*before, *msgspec.structs.astuple(message)], _layout(type(message))
    left = len(defaults)
    while left and values[-1] == defaults[left - 1]:
        del values[-1]
        left -= 1
    for place in places:
        if place < left:
            values[place + len(before)] = _short(values[place + len(before)])
    return values


@functools.cache
def _layout(kind: type[msgspec.Struct]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Defaults of a struct's fields, and places of those that may be a float or a channel state."""
    fields = msgspec.structs.fields(kind)
    hints = [{field.type, *get_args(field.type)} for field in fields]
    return tuple(field.default for field in fields), tuple(i for i, one in enumerate(hints) if one & {float, Csi})


def _short(value: Any) -> Any:
    """A field as msgpack takes the fewest bytes for it."""
    if type(value) is float:
        if value.is_integer():
            return int(value) if abs(value) < LARGEST_WHOLE else value
        return msgspec.Raw(SINGLE.pack(b"\xca", value)) if single(value) == value else value
    return _fields(value) if type(value) is Csi else value


def decode_uplink(frames: Frames) -> Packet[Any]:
    """Decode what a UE sent. Raises ProtocolError on anything that is not a well-formed uplink message."""
    return decode(frames, _UPLINK, "uplink")


def decode_downlink(frames: Frames, size_bytes: int | None = None) -> Packet[Any]:
    """Decode what a BS sent; `size_bytes` is what it took on the link, None: as much as its frames.

    Raises:
        ProtocolError: it is not a well-formed downlink message.
    """
    return decode(frames, _DOWNLINK, "downlink", size_bytes)


def decode(
    frames: Frames, decoder: msgspec.msgpack.Decoder[Message], direction: str, size_bytes: int | None = None
) -> Packet[Any]:
    """Decode a message of one direction, known to its decoder.

    Raises:
        ProtocolError: it is none.
    """
    if not 1 <= len(frames) <= 1 + MAX_ARRAYS:
        raise ProtocolError(f"a message has 1 to {1 + MAX_ARRAYS} frames, not {len(frames)}")
    if len(frames[0]) > MAX_HEADER_BYTES:
        raise ProtocolError(f"header of {len(frames[0])} bytes; at most {MAX_HEADER_BYTES}")
    try:
        message = decoder.decode(frames[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadInput) as exc:  # msgspec lets some through
        raise ProtocolError(f"unreadable {direction} header: {exc}") from exc
    if len(message.arrays) != len(frames) - 1:
        raise ProtocolError(f"header names {len(message.arrays)} arrays, {len(frames) - 1} came")
    arrays = {spec.name: _array(spec, frame) for spec, frame in zip(message.arrays, frames[1:], strict=True)}
    if len(arrays) != len(message.arrays):
        raise ProtocolError("two arrays of one name")
    arrays.pop(PAD, None)
    return Packet(message, arrays, sum(map(len, frames)) if size_bytes is None else size_bytes)


def _array(spec: Array, frame: bytes | memoryview) -> AnyArray:
    dtype = DTYPES.get(spec.dtype)
    if dtype is None:
        raise ProtocolError(f"array {spec.name!r}: unknown dtype {spec.dtype!r}")
    if len(spec.shape) > 2 or not all(0 <= n <= MAX_ARRAY_BYTES for n in spec.shape):
        raise ProtocolError(f"array {spec.name!r}: bad shape {spec.shape}")
    size = math.prod(spec.shape) * dtype.itemsize
    if size != len(frame) or size > MAX_ARRAY_BYTES:
        raise ProtocolError(f"array {spec.name!r}: shape {spec.shape} does not fit {len(frame)} bytes")
    return np.frombuffer(frame, dtype).reshape(spec.shape)


def pack_positions(positions: Sequence[int], window: int) -> NDArray[np.uint8]:
    """Positions in a window of K tokens at ceil(log2(K+1)) bits each, padded with zeros to whole bytes (WISV eq. 8)."""
    return pack_bits(np.asarray(positions, np.int64), position_bits(window))


def pack_bits(numbers: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """Numbers [n], not negative, at `width` bits each, high bits first, padded with zeros to whole bytes."""
    if 8 % width == 0:
        columns = 8 // width
        codes = np.pad(numbers.astype(np.uint8), (0, -len(numbers) % columns)).reshape(-1, columns)
        shifted = codes << np.arange(8 - width, -1, -width, dtype=np.uint8)
        packed: NDArray[np.uint8] = np.bitwise_or.reduce(shifted, axis=1, dtype=np.uint8)
        return packed
    bits = (numbers.astype(np.int64)[:, None] >> np.arange(width - 1, -1, -1)) & 1
    return np.packbits(bits.astype(np.uint8).ravel())


def unpack_bits(packed: AnyArray, count: int, width: int) -> NDArray[np.int64] | NDArray[np.uint8]:
    """Inverse of `pack_bits`: numbers [count].

    Raises:
        ProtocolError: another type or length, or padding other than zeros.
    """
    if count < 0 or packed.dtype != np.uint8 or packed.shape != (-(-count * width // 8),):
        raise ProtocolError(f"{count} numbers of {width} bits do not fit an array of shape {packed.shape}")
    if count * width % 8 and int(packed[-1]) & (1 << -(count * width) % 8) - 1:
        raise ProtocolError("padding must be 0")
    if 8 % width == 0:
        columns = 8 // width
        small = np.empty(len(packed) * columns, np.uint8)
        for i in range(columns):  # a broadcast over a byte's numbers has an inner loop of 2 to 8
            np.right_shift(packed, np.uint8(8 - width * (i + 1)), out=small[i::columns])
        small &= np.uint8(2**width - 1)
        return small[:count]
    bits = np.unpackbits(packed, count=count * width).reshape(count, width)
    numbers: NDArray[np.int64] = (bits.astype(np.int64) << np.arange(width - 1, -1, -1)).sum(axis=1)
    return numbers


def unpack_positions(packed: AnyArray, count: int, window: int) -> list[int]:
    """Inverse of `pack_positions`.

    Raises:
        ProtocolError: the array does not hold `count` increasing positions below `window`.
    """
    if count > window:  # before numbers are made of what may be megabytes
        raise ProtocolError(f"{count} positions in a window of {window} tokens")
    positions = unpack_bits(packed, count, position_bits(window)).tolist()
    if any(p >= window for p in positions) or any(a >= b for a, b in itertools.pairwise(positions)):
        raise ProtocolError("positions must increase and lie inside the window")
    return [int(p) for p in positions]


def asked_positions(packet: Packet[NeedHidden], window: int) -> list[int]:
    """Positions in a window of `window` tokens whose hidden states the BS requests.

    Raises:
        ProtocolError: none, or positions outside the window.
    """
    packed = packet.arrays.get("positions")
    if packed is None:
        raise ProtocolError("NeedHidden without positions")
    return unpack_positions(packed, packet.message.count, window)
