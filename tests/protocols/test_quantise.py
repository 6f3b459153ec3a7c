"""Hidden states at 8 and 4 bits: against exact rational arithmetic, and whatever a peer may send in their place."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from testbed.channel.cost import Sizes
from testbed.errors import BadInput, ProtocolError
from testbed.protocols import protocol
from testbed.protocols.base import Drafted, hidden_arrays, read_hidden
from testbed.protocols.codec import AnyArray, decode_uplink, encode
from testbed.protocols.messages import Draft, Hidden
from testbed.protocols.quantise import degrade, dequantise, quantise, quantised

BITS = st.sampled_from([8, 4])
SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)
HALF = hnp.arrays(np.float16, SHAPES, elements=st.floats(width=16, allow_nan=False, allow_infinity=False))
SINGLE = hnp.arrays(np.float32, SHAPES, elements=st.floats(-4e5, 4e5, width=32))
VECTORS = HALF | SINGLE
NORMAL = [Fraction(float(v)) for v in np.arange(0x0400, 0x7C00, dtype=np.uint16).view(np.float16)]
"""All normal float16 numbers, in order."""


def exactly(vector: list[float], bits: int) -> tuple[list[int], Fraction]:
    """Levels and scale of one vector in rational numbers."""
    most = 2 ** (bits - 1) - 1
    peak = max(abs(Fraction(v)) for v in vector)
    scale = NORMAL[bisect_left(NORMAL, peak / most)]
    return [round(Fraction(v) / scale) for v in vector], scale  # half to even


def unpacked(packed: AnyArray, bits: int) -> list[list[int]]:
    """Levels of every row, padding included, read off the bits."""
    found = []
    for row in packed:
        text = "".join(f"{byte:08b}" for byte in row.tolist())
        found.append([int(text[i : i + bits], 2) - 2 ** (bits - 1) for i in range(0, len(text), bits)])
    return found


@given(hidden=HALF, bits=BITS)
def test_levels_and_scales_are_those_of_exact_arithmetic(hidden: AnyArray, bits: int) -> None:
    packed, scale = quantise(hidden, bits)
    rows = [exactly(row, bits) for row in hidden.tolist()]
    assert [Fraction(float(s)) for s in scale] == [s for _, s in rows]
    size = hidden.shape[1]
    assert [levels[:size] for levels in unpacked(packed, bits)] == [levels for levels, _ in rows]
    assert degrade(hidden, bits).tolist() == [[float(q * s) for q in levels] for levels, s in rows]


@given(hidden=VECTORS, bits=BITS)
def test_nothing_is_off_by_more_than_half_a_step(hidden: AnyArray, bits: int) -> None:
    step = quantise(hidden, bits)[1].astype(np.float64)[:, None]
    error = np.abs(degrade(hidden, bits) - hidden.astype(np.float64))
    assert (error <= step / 2 * (1 + 2**-20)).all()  # dividing in float32 may move what lies next to a half


@given(hidden=VECTORS, bits=st.sampled_from([16, 8, 4]))
def test_what_arrived_arrives_again_as_it_is(hidden: AnyArray, bits: int) -> None:
    hidden = hidden.clip(-65504, 65504)
    once = degrade(hidden, bits)
    assert once.dtype == np.float32
    assert degrade(once, bits).tobytes() == once.tobytes()


@given(hidden=VECTORS, bits=BITS)
def test_a_sign_turned_round_turns_the_result_round(hidden: AnyArray, bits: int) -> None:
    np.testing.assert_array_equal(degrade(-hidden, bits), -degrade(hidden, bits))


@given(hidden=HALF, bits=st.sampled_from([16, 8, 4]), data=st.data())
def test_the_wire_brings_what_degrade_says(hidden: AnyArray, bits: int, data: st.DataObject) -> None:
    rows, size = hidden.shape
    drafted = Drafted(np.arange(rows, dtype=np.int32), hidden, hidden_bits=bits)
    sent = encode(Draft(session=1, round=0, base_len=5), protocol("fh").uplink(drafted))
    window = protocol("fh").window(decode_uplink(sent).arrays, size, bits)
    assert window.hidden is not None
    np.testing.assert_array_equal(window.hidden.astype(np.float32), degrade(hidden, bits))
    asked = sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1)))
    answer = encode(Hidden(session=1, round=0), protocol("sh").reveal(drafted, asked))
    shown = read_hidden(decode_uplink(answer).arrays, len(asked), size, bits)
    np.testing.assert_array_equal(shown.astype(np.float32), degrade(hidden, bits)[asked])


@given(hidden=HALF, bits=st.sampled_from([16, 8, 4]))
def test_frames_take_the_bits_of_the_payload(hidden: AnyArray, bits: int) -> None:
    rows, size = hidden.shape
    drafted = Drafted(np.zeros(rows, np.int32), hidden, hidden_bits=bits)
    sizes = quantised(Sizes(size), bits)
    for kind, arrays, queried in (
        ("fh", protocol("fh").uplink(drafted), 0),
        ("sh", {"ids": drafted.ids, **protocol("sh").reveal(drafted, range(rows))}, rows),
    ):
        assert 8 * sum(a.nbytes for a in arrays.values()) == protocol(kind).payload(rows, queried, sizes).uplink_bits


def test_bytes_by_hand() -> None:
    # peak 3.5 = 7 * 0.5: levels 7, -7, 1, 0 and -3 (1.5 / 0.5), then padding; codes are level + 8
    packed, scale = quantise(np.array([[3.5, -3.5, 0.5, 0.0, -1.5]], np.float16), 4)
    assert packed.tolist() == [[0xF1, 0x98, 0x50]]
    assert scale.tolist() == [0.5]
    # peak 127 * 0.25; 0.125 is half a step and goes to the even level 0, 0.375 to 2; codes are level + 128
    packed, scale = quantise(np.array([[31.75, -31.75, 0.125, 0.375]], np.float16), 8)
    assert packed.tolist() == [[255, 1, 128, 130]]
    assert scale.tolist() == [0.25]


@pytest.mark.parametrize("bits", [8, 4])
def test_vectors_of_nothing_and_no_vectors(bits: int) -> None:
    assert degrade(np.zeros((2, 5), np.float16), bits).tobytes() == bytes(40)
    assert degrade(np.full((1, 3), -0.0, np.float16), bits).tobytes() == bytes(12)
    assert degrade(np.full((1, 3), 2.0**-24, np.float16), bits).tobytes() == bytes(12)
    assert degrade(np.zeros((0, 5), np.float16), bits).shape == (0, 5)


@pytest.mark.parametrize("bits", [8, 4])
def test_float16_is_reached_to_its_end(bits: int) -> None:
    ends = np.array([[65504, -65504, 0]], np.float16)
    error = np.abs(degrade(ends, bits) - ends.astype(np.float64))
    assert error.max() <= 65504 / (2 ** (bits - 1) - 1) / 2


def test_at_16_bits_float16_is_what_arrives() -> None:
    assert degrade(np.array([[1 / 3, 1e-8]], np.float32), 16).tolist() == [[np.float16(1 / 3), 0.0]]
    assert quantised(Sizes(97), 16) == Sizes(97)


@pytest.mark.parametrize(("size", "bits", "expected"), [(96, 8, 784), (96, 4, 400), (97, 8, 792), (97, 4, 408)])
def test_a_vectors_bits_by_hand(size: int, bits: int, expected: int) -> None:
    # 96 * 8 + 16 = 784; 96 * 4 + 16 = 400; 97 * 8 + 16 = 792; 97 * 4 + 4 of padding + 16 = 408
    assert quantised(Sizes(size), bits).vector_bits == expected


@pytest.mark.parametrize("bits", [0, 1, 2, 7, 12, 32, -8])
def test_other_bits_are_refused(bits: int) -> None:
    with pytest.raises(BadInput, match="16, 8, 4 bits an element, not"):
        degrade(np.zeros((1, 2), np.float16), bits)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_states_that_no_scale_reaches_are_refused(value: float, bits: int) -> None:
    hidden = np.ones((2, 3), np.float32)
    hidden[1, 1] = value
    with pytest.raises(ProtocolError, match="must be finite"):
        quantise(hidden, bits)


# ---------------------------------------------------------------- what a peer may send

U1, F2 = np.uint8, np.float16
ONES = np.ones(2, F2)


@pytest.mark.parametrize(
    ("packed", "scale", "bits", "reason"),
    [
        (np.full((2, 3), 9, np.int32), ONES, 8, r"hidden at 8 bits must be u1 \[2, 3\], not int32 \[2, 3\]"),
        (np.full((2, 3), 9, F2), ONES, 8, "not float16"),
        (np.full((2, 2), 9, U1), ONES, 8, r"u1 \[2, 3\], not uint8 \[2, 2\]"),
        (np.full((2, 3), 0x90, U1), ONES, 4, r"u1 \[2, 2\], not uint8 \[2, 3\]"),
        (np.full((1, 3), 9, U1), ONES, 8, r"not uint8 \[1, 3\]"),
        (np.full(6, 9, U1), ONES, 8, r"not uint8 \[6\]"),
        (np.array(9, U1), ONES, 8, r"not uint8 \[\]"),
        (np.full((2, 3), 9, U1), ONES[:1], 8, r"scale must be f2 \[2\], not float16 \[1\]"),
        (np.full((2, 3), 9, U1), ONES[:, None], 8, r"not float16 \[2, 1\]"),
        (np.full((2, 3), 9, U1), np.array(1, F2), 8, r"not float16 \[\]"),
        (np.full((2, 3), 9, U1), ONES.astype(np.float32), 8, "not float32"),
        (np.full((2, 3), 9, U1), np.array([1, np.nan], F2), 8, "finite and 6.1e-05 or more"),
        (np.full((2, 3), 9, U1), np.array([1, np.inf], F2), 8, "finite"),
        (np.full((2, 3), 9, U1), np.array([1, -1], F2), 8, "6.1e-05 or more"),
        (np.full((2, 3), 9, U1), np.array([0, 1], F2), 8, "6.1e-05 or more"),
        (np.full((2, 3), 9, U1), np.array([2**-15, 1], F2), 8, "6.1e-05 or more"),
        (np.array([[1, 2, 3], [4, 0, 5]], U1), ONES, 8, r"levels of hidden states must lie in 1\.\.255"),
        (np.array([[0x12, 0x30], [0x40, 0x50]], U1), ONES, 4, r"must lie in 1\.\.15, and padding must be 0"),
        (np.array([[0x12, 0x30], [0x44, 0x51]], U1), ONES, 4, "padding must be 0"),
    ],
)
def test_arrays_that_quantise_never_gives_are_refused(packed: Any, scale: Any, bits: int, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        dequantise(packed, scale, (2, 3), bits)


@pytest.mark.parametrize(
    ("names", "bits", "reason"),
    [
        (("ids", "hidden", "scale"), 16, "expected the arrays ids, hidden; got hidden, ids, scale"),
        (("ids", "hidden"), 8, "expected the arrays ids, hidden, scale; got hidden, ids"),
        (("ids", "scale"), 4, "got ids, scale"),
    ],
)
def test_the_arrays_are_those_of_the_sessions_bits(names: tuple[str, ...], bits: int, reason: str) -> None:
    arrays = {"ids": np.zeros(2, np.int32), **hidden_arrays(np.ones((2, 4), F2), 8)}
    with pytest.raises(ProtocolError, match=reason):
        protocol("fh").window({name: arrays[name] for name in names}, 4, bits)


DTYPES = st.sampled_from(["<i4", "<f2", "<f4", "|u1", "<u2"])
ANY_ARRAY = DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4)))
WILD = st.dictionaries(st.sampled_from(["ids", "hidden", "scale", "q"]), ANY_ARRAY, max_size=4)


@given(wild=WILD, rows=st.integers(1, 3), size=st.integers(1, 5), bits=st.sampled_from([16, 8, 4]), data=st.data())
@settings(max_examples=300)
def test_any_arrays_give_finite_states_or_a_protocol_error(
    wild: dict[str, AnyArray], rows: int, size: int, bits: int, data: st.DataObject
) -> None:
    """Right arrays, some of them replaced by others, dropped, or of other contents of the right shape."""
    good: dict[str, AnyArray] = {"ids": np.zeros(rows, np.int32), **hidden_arrays(np.ones((rows, size), F2), bits)}
    for name in data.draw(st.sets(st.sampled_from(sorted(good)))):
        elements = hnp.arrays(good[name].dtype, good[name].shape)
        if (other := data.draw(elements | st.just(wild.get(name)))) is not None:
            good[name] = other
        else:
            del good[name]
    frames = encode(Draft(session=1, round=0, base_len=5), good)
    try:
        window = protocol("fh").window(decode_uplink([bytes(f) for f in frames]).arrays, size, bits)
    except ProtocolError:
        return
    assert window.hidden is not None
    assert window.hidden.shape == (len(window.ids), size)
    assert np.isfinite(window.hidden).all()
    if bits < 16:
        packed, scale = good["hidden"], good["scale"].astype(np.float64)[:, None]
        levels = np.array(unpacked(packed, bits))[:, :size]
        assert (np.abs(levels) <= 2 ** (bits - 1) - 1).all()
        np.testing.assert_array_equal(window.hidden, levels * scale)
