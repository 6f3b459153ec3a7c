"""Arrays that each protocol sends, requests and refuses; payloads against WISV eqs. 3-9 by hand."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.channel.csi import Csi
from testbed.errors import BadInput, ProtocolError
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.base import (
    HEADER_DOWN_BYTES,
    HEADER_UP_BYTES,
    Drafted,
    Payload,
    Sizes,
    read_hidden,
)  # fmt: skip
from testbed.protocols.codec import AnyArray, decode_uplink, encode, pack_positions
from testbed.protocols.messages import Draft, Hidden, Message, NeedHidden, Verdict

LLAMA = Sizes(hidden_size=2048, id_bits=17)
"""Llama-3.2-1B: hidden size 2048, V = 128,256 (2^16 = 65,536 < V < 131,072 = 2^17); B_h = 2048 * 16 = 32,768 bits."""
WIRE = Sizes(hidden_size=96)
"""The wire's 32-bit ids; B_h = 96 * 16 = 1,536 bits."""


@pytest.mark.parametrize(
    ("kind", "window", "queried", "sizes", "expected"),
    [
        # K = 8: 8 * 17 = 136 up; b_pos + b_id = 4 + 17 = 21 down
        ("greedy", 8, 0, LLAMA, Payload(136, 21, 1, 1)),
        # 8 * (17 + 32768) = 262,280 up
        ("fh", 8, 0, LLAMA, Payload(262_280, 21, 1, 1)),
        # no mismatch: as greedy
        ("sh", 8, 0, LLAMA, Payload(136, 21, 1, 1)),
        # m = 3: 136 + 3 * 32768 = 98,440 up; 3 * 4 + 21 = 33 down; two exchanges
        ("sh", 8, 3, LLAMA, Payload(98_440, 33, 2, 2)),
        # m = K = 8: 136 + 262,144 up, as FH; 8 * 4 + 21 = 53 down
        ("sh", 8, 8, LLAMA, Payload(262_280, 53, 2, 2)),
        # K = 1: positions 0 and 1 take one bit
        ("greedy", 1, 0, WIRE, Payload(32, 33, 1, 1)),
        ("fh", 1, 0, WIRE, Payload(1_568, 33, 1, 1)),
        ("sh", 1, 1, WIRE, Payload(1_568, 34, 2, 2)),
        # K = 7 is the last window of 3 bits: 7 * 32 = 224; 3 + 32; 224 + 2 * 1536 = 3,296; 2 * 3 + 35
        ("greedy", 7, 0, WIRE, Payload(224, 35, 1, 1)),
        ("sh", 7, 2, WIRE, Payload(3_296, 41, 2, 2)),
        # K = 16 needs 5 bits (17 values): 16 * (32 + 1536) = 25,088; 5 + 32
        ("fh", 16, 0, WIRE, Payload(25_088, 37, 1, 1)),
        # 32-bit hidden elements: 4 * (32 + 10 * 32) = 1,408; 3 + 32
        ("fh", 4, 0, Sizes(hidden_size=10, hidden_bits=32), Payload(1_408, 35, 1, 1)),
    ],
)
def test_payload_by_hand(kind: str, window: int, queried: int, sizes: Sizes, expected: Payload) -> None:
    assert protocol(kind).payload(window, queried, sizes) == expected


def test_a_round_trip_for_every_uplink_message() -> None:
    assert [protocol("sh").payload(8, m, WIRE).round_trips for m in (0, 1, 8)] == [1, 2, 2]
    assert protocol("fh").payload(8, 0, WIRE).round_trips == protocol("greedy").payload(8, 0, WIRE).round_trips == 1


def test_an_unknown_protocol_is_told_the_known_ones() -> None:
    with pytest.raises(BadInput, match="unknown protocol 'smoke'; known: greedy, ") as caught:
        protocol("smoke")
    assert all(kind in str(caught.value) for kind in PROTOCOLS)


def test_each_protocol_is_registered_under_its_kind() -> None:
    assert {kind: found.kind for kind, found in PROTOCOLS.items()} == {k: k for k in PROTOCOLS}
    assert [protocol(kind).judged for kind in ("greedy", "fh", "sh")] == [False, True, True]


# ---------------------------------------------------------------- UE side

DRAFTED = Drafted(np.array([5, 6, 7, 8], np.int32), np.arange(12, dtype=np.float16).reshape(4, 3))


def test_what_goes_up() -> None:
    for kind in ("greedy", "sh"):
        assert list(protocol(kind).uplink(DRAFTED)) == ["ids"]
        assert protocol(kind).uplink(DRAFTED)["ids"].tolist() == [5, 6, 7, 8]
    full = protocol("fh").uplink(DRAFTED)
    assert list(full) == ["ids", "hidden"]
    assert full["hidden"].dtype == np.float16
    assert full["hidden"].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_sh_reveals_the_rows_asked_for_in_their_order() -> None:
    assert protocol("sh").reveal(DRAFTED, [1, 3])["hidden"].tolist() == [[3, 4, 5], [9, 10, 11]]
    assert list(protocol("sh").asks_for([1, 3])) == [1, 3]
    assert list(protocol("sh").asks_for([])) == []


@pytest.mark.parametrize("kind", ["greedy", "fh"])
def test_protocols_that_ask_for_nothing_reveal_nothing(kind: str) -> None:
    assert list(protocol(kind).asks_for([0, 2])) == []
    with pytest.raises(ProtocolError, match=f"{kind} asks for no hidden states"):
        protocol(kind).reveal(DRAFTED, [0])


# ---------------------------------------------------------------- BS side

IDS = np.array([5, 6], np.int32)
HIDDEN = np.ones((2, 3), np.float16)


def spoiled(value: float) -> AnyArray:
    hidden: AnyArray = HIDDEN.copy()
    hidden[1, 2] = value
    return hidden


def test_windows_that_are_right() -> None:
    for kind in ("greedy", "sh"):
        window = protocol(kind).window({"ids": IDS}, 3)
        assert window.ids.tolist() == [5, 6]
        assert window.hidden is None
    for kind in ("fh", "sh"):
        window = protocol(kind).window({"hidden": HIDDEN, "ids": IDS}, 3)
        assert window.hidden is not None
        assert window.hidden.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_greedy_windows_have_no_hidden_states() -> None:
    with pytest.raises(ProtocolError, match="expected the arrays ids; got hidden, ids"):
        protocol("greedy").window({"ids": IDS, "hidden": HIDDEN}, 3)


@pytest.mark.parametrize("kind", ["greedy", "sh"])
@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, "expected the arrays ids; got none"),
        ({"tokens": IDS}, "got tokens"),
        ({"ids": IDS.astype(np.float32)}, "not float32"),
        ({"ids": IDS.astype(np.uint8)}, "not uint8"),
        ({"ids": IDS.reshape(1, 2)}, r"not int32 \[1, 2\]"),
        ({"ids": np.array(5, np.int32)}, r"not int32 \[\]"),
    ],
)
def test_windows_of_ids_that_are_not(kind: str, arrays: dict[str, AnyArray], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        protocol(kind).window(arrays, 3)


def test_fh_needs_hidden_states() -> None:
    with pytest.raises(ProtocolError, match="expected the arrays ids, hidden; got ids"):
        protocol("fh").window({"ids": IDS}, 3)


@pytest.mark.parametrize("kind", ["fh", "sh"])
@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"hidden": HIDDEN}, "got hidden"),
        ({"ids": IDS, "hidden": HIDDEN, "more": IDS}, "got hidden, ids, more"),
        ({"ids": IDS, "hidden": HIDDEN[:1]}, r"f2 \[2, 3\], not float16 \[1, 3\]"),
        ({"ids": IDS, "hidden": HIDDEN[:, :2]}, r"not float16 \[2, 2\]"),
        ({"ids": IDS, "hidden": HIDDEN.ravel()}, r"not float16 \[6\]"),
        ({"ids": IDS, "hidden": HIDDEN.astype(np.float32)}, "not float32"),
        ({"ids": IDS, "hidden": spoiled(float("nan"))}, "finite"),
        ({"ids": IDS, "hidden": spoiled(float("inf"))}, "finite"),
        ({"ids": IDS, "hidden": spoiled(float("-inf"))}, "finite"),
    ],
)
def test_windows_with_hidden_states_that_are_not(kind: str, arrays: dict[str, AnyArray], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        protocol(kind).window(arrays, 3)


def test_answers_for_hidden_states_are_held_to_the_same() -> None:
    assert read_hidden({"hidden": HIDDEN}, 2, 3).shape == (2, 3)
    for wrong in (spoiled(float("nan")), HIDDEN[:1], HIDDEN.astype(np.float32)):
        with pytest.raises(ProtocolError, match="hidden"):
            read_hidden({"hidden": wrong}, 2, 3)


# ---------------------------------------------------------------- on the wire

LARGE = 2**32 - 1
STATE = Csi(1 / 3, 1 / 7, 0.1, 1e-9, 1e-9, snr_db=1 / 3, rssi_dbm=-1 / 3, time_s=1 / 3, source="emulated")


@pytest.mark.parametrize(
    ("message", "arrays", "bound"),
    [
        (
            Draft(session=LARGE, round=LARGE, base_len=LARGE, csi=STATE),
            {"ids": np.zeros(256, np.int32), "hidden": np.zeros((256, 4096), np.float16)},
            HEADER_UP_BYTES,
        ),
        (Hidden(session=LARGE, round=LARGE), {"hidden": np.zeros((256, 4096), np.float16)}, HEADER_UP_BYTES),
        (
            NeedHidden(session=LARGE, round=LARGE, count=256),
            {"positions": pack_positions(range(256), 256)},
            HEADER_DOWN_BYTES,
        ),
        (
            Verdict(
                session=LARGE, round=LARGE, accepted=256, token=LARGE, candidates=256, queried=256, gap=0.1,
                batch_size=1024, queue_s=0.1, verify_s=0.1, judge_s=0.1, bs_s=0.1,
            ),
            {},
            HEADER_DOWN_BYTES,
        ),
        (
            Verdict(
                session=LARGE, round=LARGE, accepted=256, token=LARGE, candidates=256, queried=256, gap=0.1,
                batch_size=1024, queue_s=0.1, verify_s=0.1, judge_s=0.1, bs_s=0.1, window=256, kept=256, risk=0.1,
                protocol="fh",
            ),
            {},
            HEADER_DOWN_BYTES,
        ),
    ],
)  # fmt: skip
def test_headers_keep_within_the_stated_overhead(message: Message, arrays: dict[str, AnyArray], bound: int) -> None:
    assert len(encode(message, arrays)[0]) <= bound


@pytest.mark.parametrize("kind", ["greedy", "fh", "sh"])
def test_ids_and_hidden_states_take_the_stated_bits_as_frames(kind: str) -> None:
    drafted = Drafted(np.arange(13, dtype=np.int32), np.zeros((13, 96), np.float16))
    frames = encode(Draft(session=1, round=0, base_len=5), protocol(kind).uplink(drafted))
    bits = 8 * (decode_uplink(frames).size_bytes - len(frames[0]))
    assert bits == protocol(kind).payload(13, 0, WIRE).uplink_bits
