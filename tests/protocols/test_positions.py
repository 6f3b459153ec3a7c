"""Positions in a window, packed as WISV eq. 8 counts them: by hand, there and back, and made up by a peer."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.channel.cost import position_bits
from testbed.errors import ProtocolError
from testbed.protocols.codec import AnyArray, pack_positions, unpack_positions

POSITION_BITS = {1: 1, 2: 2, 3: 2, 4: 3, 7: 3, 8: 4, 15: 4, 16: 5, 31: 5, 32: 6, 64: 7, 127: 7, 128: 8, 255: 8, 256: 9}


@pytest.mark.parametrize(("window", "bits"), POSITION_BITS.items())
def test_bits_of_a_position_by_hand(window: int, bits: int) -> None:
    assert position_bits(window) == bits


def test_bits_of_a_position_are_the_fewest_that_count_to_the_window() -> None:
    for window in range(1, 257):
        bits = position_bits(window)
        assert 2**bits >= window + 1 > 2 ** (bits - 1)


def test_packing_by_hand() -> None:
    # window 8: 4 bits each: 0001 0011 0111 + 0000
    assert pack_positions([1, 3, 7], 8).tolist() == [0b00010011, 0b01110000]
    # window 5: 3 bits each: 000 010 100 + 0000000
    assert pack_positions([0, 2, 4], 5).tolist() == [0b00001010, 0b00000000]
    assert pack_positions([], 8).tolist() == []


def check_positions(positions: list[int], window: int) -> None:
    packed = pack_positions(positions, window)
    text = "".join(format(p, "b").zfill(window.bit_length()) for p in positions)
    assert len(packed) == (len(text) + 7) // 8
    assert "".join(f"{byte:08b}" for byte in packed.tolist()) == text.ljust(8 * len(packed), "0")
    assert unpack_positions(packed, len(positions), window) == positions


@given(data=st.data(), window=st.integers(1, 256))
def test_positions_come_back_and_take_no_byte_too_many(data: st.DataObject, window: int) -> None:
    check_positions(sorted(data.draw(st.sets(st.integers(0, window - 1)))), window)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10)
def test_positions_come_back_in_every_window(seed: int) -> None:
    rng = random.Random(seed)
    for window in range(1, 257):
        check_positions(sorted(rng.sample(range(window), rng.randint(0, window))), window)


@pytest.mark.parametrize("window", [1, 2, 8, 200, 255, 256])
def test_all_positions_of_a_window_at_once(window: int) -> None:
    everything = list(range(window))
    assert unpack_positions(pack_positions(everything, window), window, window) == everything


@given(
    packed=st.binary(max_size=12),
    count=st.integers(-9, 20) | st.sampled_from([-(2**63), 2**64 - 1]),
    window=st.integers(1, 256),
)
def test_positions_that_a_peer_made_up_increase_inside_the_window_or_are_refused(
    packed: bytes, count: int, window: int
) -> None:
    try:
        positions = unpack_positions(np.frombuffer(packed, np.uint8), count, window)
    except ProtocolError:
        return
    assert positions == sorted(set(positions))
    assert len(positions) == count
    assert all(0 <= p < window for p in positions)


@pytest.mark.parametrize(
    ("packed", "count", "window"),
    [
        (np.array([0b00010001], np.uint8), 2, 8),  # one twice
        (np.array([0b00110001], np.uint8), 2, 8),  # falling
        (np.array([0b10000000], np.uint8), 1, 8),  # 8 in a window of 8
        (np.array([0, 0], np.uint8), 1, 8),  # a byte too many
        (np.array([], np.uint8), 1, 8),
        (np.array([], np.uint8), -1, 1),
        (np.array([[0b00010011]], np.uint8), 2, 8),
        (np.array([0b00010011], np.int32), 2, 8),
    ],
)
def test_positions_that_cannot_be_are_refused(packed: AnyArray, count: int, window: int) -> None:
    with pytest.raises(ProtocolError):
        unpack_positions(packed, count, window)


def test_more_positions_than_tokens_are_refused_before_they_are_read() -> None:
    """A message of 4 MiB held the event loop of a UE up for a second, and took 500 MB."""
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="33554432 positions in a window of 1 tokens"):
            unpack_positions(np.zeros(2**22, np.uint8), 2**25, 1)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()
