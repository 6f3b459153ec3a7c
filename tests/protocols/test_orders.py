"""Orders and reports: what comes back as it went, and what is refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.config import RunConfig
from testbed.errors import BadInput, ProtocolError
from testbed.protocols.codec import encode
from testbed.protocols.messages import Draft, Ping
from testbed.protocols.orders import (
    Ask,
    Call,
    Cancel,
    Cancelled,
    Drop,
    File,
    Get,
    Order,
    Probing,
    Put,
    Running,
    Standing,
    State,
    check_name,
    decode_order,
    decode_report,
    order_id,
)
from tests.support.refusals import refuse

DIGEST = "0123456789abcdef" * 2
ORDERS = [
    Call(version=1, token=7),
    Put(name="a1b2/drafter.gguf", offset=0, total=9, digest=DIGEST),
    Order(id="hall-0-fh", what=Running(RunConfig(methods=("fh",), csi="link"), link="hall-link", trace="t.csv")),
    Order(id="y", what=Running(RunConfig(), digests={"d/a.gguf": DIGEST})),
    Order(id="x", what=Probing("tcp://192.0.2.7:5555", None, 5, 20, 10.0), start_s=3.5),
    Ask(id="x"),
    Get(id="x", name="rounds.parquet", offset=2**20),
    Drop(id="x"),
    Cancel(prefix="hall-far-"),
]  # fmt: skip
OUTSIDE = [
    "",
    "../up",
    "a/../../b",
    "/etc/passwd",
    "a//b",
    ".hidden",
    "a/.b",
    "a\n",
    "a b",
    "a\0",
    "a/b/c/d/e",
    "x" * 300,
]


@pytest.mark.parametrize("message", ORDERS, ids=lambda m: type(m).__name__)
def test_orders_come_back_as_they_went(message: Order) -> None:
    packet = decode_order(encode(message, {"data": np.arange(3, dtype=np.uint8)}))
    assert packet.message == message.__class__(**{
        **{name: getattr(message, name) for name in message.__struct_fields__}, "arrays": packet.message.arrays,
    })  # fmt: skip
    with pytest.raises(ProtocolError):
        decode_report(encode(message))


def test_a_full_report_fits_its_frame() -> None:
    files = tuple(File(f"cells/run-{i}.parquet", 2**30, DIGEST) for i in range(16))
    assert decode_report(encode(State(id="x" * 200, state="done", note="n" * 500, files=files))).message.files == files
    standing = Standing(version=1, token=1, time_s=1.5, host="orin", testbed="0.1", free_bytes=2**40, waiting=3)
    assert decode_report(encode(standing)).message == standing
    cancelled = Cancelled(prefix="x" * 200, count=10_000)
    assert decode_report(encode(cancelled)).message == cancelled


def test_an_order_without_digests_is_one_that_older_agents_know() -> None:
    sent = [bytes(encode(Order(id="x", what=Running(RunConfig(), digests=known)))[0]) for known in ({}, {"a": DIGEST})]
    assert [b"digests" in header for header in sent] == [False, True]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    for message in (
        Put(name=name, offset=0, total=1, digest=DIGEST),
        Get(id="x", name=name, offset=0),
        Order(id="x", what=Running(RunConfig(), trace=name)),
        Order(id=name, what=Running(RunConfig())),
        Order(id="x", what=Running(RunConfig(), digests={name: DIGEST})),
        Cancel(prefix=name),
    ):
        with pytest.raises(ProtocolError):
            decode_order(encode(message))
    refuse(lambda: check_name(name), BadInput, "bad file name")


@pytest.mark.parametrize(
    "message",
    [
        Put(name="a", offset=-1, total=1, digest=DIGEST),
        Put(name="a", offset=0, total=2**60, digest=DIGEST),
        Put(name="a", offset=0, total=1, digest="0"),
        Order(id="x", what=Probing("tcp://h:1", None, 0, 20, 10.0)),
        Order(id="x", what=Probing("tcp://h:1", None, 5, 10**9, 10.0)),
    ],
)
def test_numbers_beyond_their_bounds_are_refused(message: Order) -> None:
    with pytest.raises(ProtocolError):
        decode_order(encode(message))


def test_messages_of_a_base_station_are_no_orders() -> None:
    for message in (Ping(token=1), Draft(session=1, round=0, base_len=2)):
        with pytest.raises(ProtocolError):
            decode_order(encode(message))


def test_values_nested_too_deeply_are_refused() -> None:
    """msgspec skips what precedes the tag of an order's content, and fails in its own way where that is too deep."""
    fields = msgspec.msgpack.decode(bytes(encode(Order(id="x", what=Probing("tcp://h:1", None, 5, 20, 10.0)))[0]))
    place = next(i for i, value in enumerate(fields) if isinstance(value, dict))
    fields[place] = msgspec.Raw(b"\x81\xa1a" + b"\x91" * 3000 + b"\xc0")
    with pytest.raises(ProtocolError, match="unreadable order header"):
        decode_order([msgspec.msgpack.encode(fields)])


@given(st.binary(max_size=200))
def test_rubbish_is_refused(data: bytes) -> None:
    for decode in (decode_order, decode_report):
        with pytest.raises(ProtocolError):
            decode([data])


def test_an_order_is_known_by_all_that_it_says() -> None:
    one = order_id("hall", "near", config={"a": 1, "b": [2]})
    assert one == order_id("hall", "near", config={"b": [2], "a": 1})
    assert one != order_id("hall", "near", config={"a": 1, "b": [3]})
    assert one.startswith("hall-near-")
