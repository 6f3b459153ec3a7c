"""The wire codec: round trips of every message, and whatever else comes in is a ProtocolError and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from testbed.channel.csi import Csi, single
from testbed.errors import ProtocolError
from testbed.protocols.codec import AnyArray, Packet, decode_downlink, decode_uplink, encode
from testbed.protocols.messages import (
    Busy,
    Close,
    Draft,
    Fault,
    Hello,
    Hidden,
    Message,
    NeedHidden,
    Open,
    Opened,
    Ping,
    Pong,
    Resync,
    Verdict,
    Welcome,
)  # fmt: skip

NUMBER = st.integers(-(2**63), 2**64 - 1)
REAL = st.floats(allow_nan=False)
TEXT = st.text(max_size=40)
NUMBERS = st.lists(NUMBER, max_size=4).map(tuple)
TEXTS = st.lists(TEXT, max_size=4).map(tuple)
RATE = st.floats(1e-6, 1e6)
SHARE = st.floats(0, 1, exclude_max=True)
CSI = st.builds(Csi, uplink_mbps=RATE, downlink_mbps=RATE, rtt_ms=RATE, per_up=SHARE, per_down=SHARE)
ROUND = {"session": NUMBER, "round": NUMBER}

UPLINK: dict[type[Message], dict[str, Any]] = {
    Hello: {"version": NUMBER, "tokenizer": TEXT, "vocab_size": NUMBER, "again": st.booleans()},
    Open: {
        "session": NUMBER,
        "protocol": TEXT,
        "threshold": REAL,
        "hidden_size": NUMBER,
        "max_tokens": NUMBER,
        "temperature": REAL,
        "top_k": NUMBER,
        "top_p": REAL,
        "seed": NUMBER,
        "drafter": TEXT,
        "served": TEXT,
        "speed_tps": st.none() | REAL,
        "hidden_bits": NUMBER,
        "window": NUMBER,
        "alone": st.booleans(),
        "round": NUMBER,
        "states": st.sampled_from(["predicting", "after"]),
        "risk": REAL,
        "coupled": st.booleans(),
        "endless": st.booleans(),
        "stream": NUMBER,
        "block": st.booleans(),
        "q_top": NUMBER,
        "q_bits": NUMBER,
        "protocol_hints": st.booleans(),
        "lookahead_hints": st.booleans(),
        "load": st.booleans(),
    },
    Draft: {
        **ROUND,
        "base_len": NUMBER,
        "csi": st.none() | CSI,
        "draft_s": REAL,
        "network_s": REAL,
        "guess": st.none() | NUMBER,
        "waits": st.booleans(),
    },
    Hidden: ROUND,
    Close: {"session": NUMBER},
    Ping: {"served": TEXT, "token": NUMBER},
}
DOWNLINK: dict[type[Message], dict[str, Any]] = {
    Welcome: {
        "version": NUMBER, "model": TEXT, "hidden_size": NUMBER, "vocab_size": NUMBER, "end_ids": NUMBERS,
        "protocols": TEXTS, "max_window": NUMBER, "max_positions": NUMBER, "weights": TEXT, "judge": TEXT,
    },
    Opened: {"session": NUMBER, "length": NUMBER},
    NeedHidden: {**ROUND, "count": NUMBER},
    Verdict: {
        **ROUND, "accepted": NUMBER, "token": NUMBER, "candidates": NUMBER, "queried": NUMBER, "gap": REAL,
        "batch_size": NUMBER, "queue_s": REAL, "verify_s": REAL, "judge_s": REAL, "bs_s": REAL,
        "window": NUMBER, "kept": NUMBER, "risk": REAL, "base_len": st.none() | NUMBER, "draft": st.none() | NUMBER,
        "joined": NUMBER, "protocol": TEXT, "lookahead": NUMBER, "others_drafted": NUMBER,
    },
    Resync: {"session": NUMBER, "reason": TEXT},
    Busy: {
        "session": NUMBER, "reason": TEXT, "retry_s": REAL, "speed_tps": st.none() | REAL,
        "round": st.none() | NUMBER,
    },
    Fault: {"session": NUMBER, "reason": TEXT},
    Pong: {"token": NUMBER, "time_s": REAL},
}  # fmt: skip
ARRAY = st.sampled_from(["<i4", "<f2", "<f4", "|u1", "<u2"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5))
)
ARRAYS = st.dictionaries(st.text(max_size=12), ARRAY, max_size=4)


def messages(kinds: dict[type[Message], dict[str, Any]]) -> st.SearchStrategy[Message]:
    return st.one_of(*[st.builds(kind, **fields) for kind, fields in kinds.items()])


def test_the_strategies_cover_every_field_of_every_message() -> None:
    ours = {kind for kind in Message.__subclasses__() if kind.__module__ == Message.__module__}
    assert set(UPLINK) | set(DOWNLINK) == ours
    for kind, fields in (UPLINK | DOWNLINK).items():
        assert {*fields, "arrays"} == set(kind.__struct_fields__)


def assert_same(packet: Packet[Any], message: Message, arrays: dict[str, AnyArray], frames: list[Any]) -> None:
    assert type(packet.message) is type(message)
    for field in message.__struct_fields__:
        if field != "arrays":
            assert getattr(packet.message, field) == getattr(message, field)
    assert list(packet.arrays) == list(arrays)
    for name, array in arrays.items():
        got = packet.arrays[name]
        assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert packet.size_bytes == sum(len(bytes(frame)) for frame in frames)


@given(message=messages(UPLINK), arrays=ARRAYS)
@settings(max_examples=60)
def test_uplink_messages_come_back_as_they_went(message: Message, arrays: dict[str, AnyArray]) -> None:
    frames = encode(message, arrays)
    assert_same(decode_uplink([memoryview(bytes(f)) for f in frames]), message, arrays, frames)
    with pytest.raises(ProtocolError):
        decode_downlink(frames)


@given(message=messages(DOWNLINK), arrays=ARRAYS)
@settings(max_examples=60)
def test_downlink_messages_come_back_as_they_went(message: Message, arrays: dict[str, AnyArray]) -> None:
    frames = encode(message, arrays)
    assert_same(decode_downlink(frames), message, arrays, frames)
    with pytest.raises(ProtocolError):
        decode_uplink(frames)


def test_the_frames_of_a_draft_byte_by_byte() -> None:
    ids = np.array([[1, 9, -2], [7, 7, 7]], np.int32).T[:, 0]  # not contiguous
    header, frame = encode(Draft(session=3, round=4, base_len=5, csi=None), {"ids": ids})
    assert msgspec.msgpack.decode(header) == ["Draft", 3, 4, 5, None, 0.0, 0.0, None, False, [["ids", "i4", [3]]]]
    assert frame == struct.pack("<iii", 1, 9, -2)


@given(message=messages(UPLINK | DOWNLINK))
@settings(max_examples=60)
def test_a_header_is_no_longer_than_plain_msgpack_and_means_the_same(message: Message) -> None:
    header, plain = encode(message)[0], msgspec.msgpack.encode(message)
    assert len(header) <= len(plain)
    assert msgspec.msgpack.decode(header, type=type(message)) == message


def test_a_header_holds_what_is_known_and_no_more() -> None:
    """Times measured in single precision take 5 bytes, zeros 1, defaults at the end none."""
    told = {"session": 3, "round": 4, "accepted": 2, "token": 9, "candidates": 1, "queried": 0, "batch_size": 1}
    times = {"queue_s": 0.0, "verify_s": single(0.1), "judge_s": 0.0, "bs_s": single(0.2)}
    (header,) = encode(Verdict(**told, **times, gap=1.5))
    assert len(header) == 1 + len("_Verdict") + len(told) + 2 * 1 + 2 * 5 + 5
    assert msgspec.msgpack.decode(header)[1:] == [3, 4, 2, 9, 1, 0, 1.5, 1, 0, single(0.1), 0, single(0.2)]


@given(value=REAL)
def test_single_precision_is_that_of_numpy(value: float) -> None:
    with np.errstate(over="ignore"):
        assert single(value) == float(np.float32(value))


@pytest.mark.parametrize("dtype", ["i8", "f8", ">i4", ">f2", "?", "U3", "O"])
def test_a_dtype_that_does_not_travel_is_refused_before_it_is_sent(dtype: str) -> None:
    with pytest.raises(ValueError, match="does not travel; use one of i4, f2, f4, u1"):
        encode(Close(session=1), {"x": np.zeros(2, dtype)})


# ---------------------------------------------------------------- what a peer may get wrong

DECODERS = st.sampled_from([decode_uplink, decode_downlink])
Decode = Callable[[Any], Packet[Any]]


def decode_or_refuse(decode: Decode, frames: list[bytes]) -> None:
    try:
        packet = decode(frames)
    except ProtocolError:
        return
    assert isinstance(packet.message, Message)
    assert sum(array.nbytes for array in packet.arrays.values()) == sum(map(len, frames[1:]))


@given(decode=DECODERS, frames=st.lists(st.binary(max_size=80), max_size=7))
@settings(max_examples=200)
def test_random_bytes_raise_nothing_but_protocol_errors(decode: Decode, frames: list[bytes]) -> None:
    decode_or_refuse(decode, frames)


@given(data=st.data(), message=messages(UPLINK | DOWNLINK), arrays=ARRAYS, decode=DECODERS)
@settings(max_examples=150)
def test_mutated_frames_raise_nothing_but_protocol_errors(
    data: st.DataObject, message: Message, arrays: dict[str, AnyArray], decode: Decode
) -> None:
    frames = [bytearray(frame) for frame in encode(message, arrays)]
    for _ in range(data.draw(st.integers(1, 4))):
        frame = frames[data.draw(st.integers(0, len(frames) - 1))]
        at = data.draw(st.integers(0, len(frame)))
        frame[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    decode_or_refuse(decode, [bytes(frame) for frame in frames])


ANY = st.recursive(
    st.none() | st.booleans() | NUMBER | st.floats() | TEXT | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(data=st.data(), message=messages(UPLINK | DOWNLINK), decode=DECODERS)
@settings(max_examples=150)
def test_fields_of_any_other_type_raise_nothing_but_protocol_errors(
    data: st.DataObject, message: Message, decode: Decode
) -> None:
    fields = msgspec.msgpack.decode(encode(message)[0])
    fields[data.draw(st.integers(1, len(fields) - 1))] = data.draw(ANY)
    decode_or_refuse(decode, [msgspec.msgpack.encode(fields)])


def header(*arrays: Any, kind: str = "Draft", more: tuple[Any, ...] = ()) -> bytes:
    return msgspec.msgpack.encode([kind, 1, 0, 5, None, 0.0, 0.0, None, False, list(arrays), *more])


def test_the_header_that_the_refusals_below_vary_is_itself_good() -> None:
    packet = decode_uplink([header(["ids", "i4", [2]]), struct.pack("<ii", 4, 5)])
    assert packet.arrays["ids"].tolist() == [4, 5]


IDS = ["ids", "i4", [2]]
EIGHT = bytes(8)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "1 to 5 frames, not 0"),
        ([header(*[[str(i), "u1", [0]] for i in range(5)]), *[b""] * 5], "1 to 5 frames, not 6"),
        ([header()[:-3]], "unreadable uplink header"),
        ([header() + b"\0"], "unreadable uplink header"),
        ([header(kind="Verdict")], "unreadable uplink header"),
        ([header(kind="Smoke")], "unreadable uplink header"),
        ([header(more=(7,))], "unreadable uplink header"),
        ([header([*IDS, "big-endian"]), EIGHT], "unreadable uplink header"),
        ([header(more=(bytes(4096),))], "header of 41[0-9][0-9] bytes; at most 4096"),
        ([header(kind="Draft").replace(b"Draft", b"Dra\xfft")], "unreadable uplink header"),
        ([header([b"ids", "i4", [2]]), EIGHT], "unreadable uplink header"),
        ([header(IDS).replace(b"ids", b"\xff\xfe\xfd"), EIGHT], "unreadable uplink header"),
        ([header(IDS)], "names 1 arrays, 0 came"),
        ([header(), EIGHT], "names 0 arrays, 1 came"),
        ([header(IDS, IDS), EIGHT, EIGHT], "two arrays of one name"),
        ([header(["ids", "i8", [1]]), EIGHT], "unknown dtype 'i8'"),
        ([header(["ids", "<i4", [2]]), EIGHT], "unknown dtype '<i4'"),
        ([header(["ids", "O", [1]]), EIGHT], "unknown dtype 'O'"),
        ([header(["ids", "i4", [3]]), EIGHT], "does not fit 8 bytes"),
        ([header(["ids", "i4", [1]]), EIGHT], "does not fit 8 bytes"),
        ([header(["ids", "i4", [2]]), bytes(7)], "does not fit 7 bytes"),
        ([header(["ids", "i4", [-2]]), EIGHT], "bad shape"),
        ([header(["ids", "i4", [-1, -2]]), EIGHT], "bad shape"),
        ([header(["ids", "i4", [1, 2, 1]]), EIGHT], "bad shape"),
        ([header(["ids", "i4", [2**33, 2**33]]), b""], "shape"),
        ([header(["ids", "i4", [0, 2**62]]), b""], "bad shape"),
        ([header(["ids", "i4", [2**64 - 1, 0]]), b""], "bad shape"),
        ([header(["ids", "i4", [2.0]]), EIGHT], "unreadable uplink header"),
    ],
)
def test_frames_that_do_not_hold_together_are_refused(frames: list[bytes], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_uplink(frames)


@pytest.mark.parametrize(
    "csi",
    [
        [float("nan"), 1, 1],
        [1, float("inf"), 1],
        [1, 1, -1.0],
        [1, 1, 1, 1.0],
        [1, 1, 1, 0, 0, None, None, 0, "probe", 0],
        [1, 1, 1, 0, 0, None, None, 0, "guess"],
        [1, 1],
        {"rtt_ms": 1},
    ],
)
def test_a_channel_state_that_cannot_be_is_refused(csi: Any) -> None:
    with pytest.raises(ProtocolError):
        decode_uplink([msgspec.msgpack.encode(["Draft", 1, 0, 5, csi, 0.0, 0.0, None, False, []])])


def test_an_array_of_more_than_its_bound_is_refused() -> None:
    size = 64 * 2**20
    decode_uplink([header(["x", "u1", [size]]), bytes(size)])
    with pytest.raises(ProtocolError, match="does not fit"):
        decode_uplink([header(["x", "u1", [2, size // 2 + 1]]), bytes(size + 2)])
