"""Hidden states at 8 and 4 bits: symmetric levels and one float16 scale a vector, on the wire and for training.

A level q in -L…L, L = 2^(b-1) - 1, stands for q·scale. The scale is the smallest float16 that clips nothing, subnormal
ones left out: so the largest element always lies at level L, or the scale is `SMALLEST_SCALE`, and what arrived and is
sent again arrives unchanged. Levels travel as q + 2^(b-1), at 4 bits two in a byte, the first in the upper half.

Draft distributions at fewer bits: the `q_top` most likely ids, and `q_bits` bits for each probability. The UE draws
from the distribution that it sends, so that what is left out or rounded costs acceptance, never losslessness
(quantise-then-sample, arXiv 2507.00605; sparse lattice, arXiv 2510.09942). A count of b bits stands for
65535 / (2^b − 1) counts of `sampling.ONE`, so that everything but the frame `q` is as with 16 bits. That frame is u1
[n], the first bit of each number first, padded with zeros to whole bytes:

- with `q_top`, k entries for each token of the window, by increasing id: ceil(log2 V) bits of the id, b of the count;
- otherwise V counts of b bits for each token, and under `split` one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.channel.cost import Sizes, id_bits
from testbed.errors import BadInput, ProtocolError
from testbed.protocols.codec import AnyArray, pack_bits, unpack_bits
from testbed.protocols.sampling import Counts, Sampling, unit

FULL_BITS = 16
"""Hidden states as they are: float16, without a scale."""
HIDDEN_BITS = (FULL_BITS, 8, 4)
SCALE_BITS = 16
"""Bits of the scale that is sent with each vector below 16 bits."""
SMALLEST_SCALE = np.finfo(np.float16).smallest_normal
"""2⁻¹⁴"""


def check_bits(bits: int) -> int:
    """Return the bits of an element that a hidden state can travel at.

    Raises:
        BadInput: it cannot.
    """
    if bits not in HIDDEN_BITS:
        raise BadInput(f"hidden states travel at {', '.join(map(str, HIDDEN_BITS))} bits an element, not {bits}")
    return bits


def packed_bytes(size: int, bits: int) -> int:
    """Bytes of the levels of one vector of `size` elements."""
    return -(-size * bits // 8)


def quantised(sizes: Sizes, bits: int) -> Sizes:
    """Sizes of payloads with hidden states of `bits` bits per element; at 16 nothing changes. Padding to whole bytes,
    which an odd size needs at 4 bits, is counted with the scale.
    """
    if bits == FULL_BITS:
        return sizes
    padding = 8 * packed_bytes(sizes.hidden_size, bits) - sizes.hidden_size * bits
    return sizes._replace(hidden_bits=bits, scale_bits=SCALE_BITS + padding)


def quantise(hidden: NDArray[np.floating[Any]], bits: int) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Levels u1 [n, ceil(d·bits/8)] and scales f2 [n] of vectors [n, d], at 8 or 4 bits.

    Raises:
        ProtocolError: elements that are not finite, or so large that no float16 scale reaches them.
    """
    most = 2 ** (bits - 1) - 1
    vectors = hidden.astype(np.float32)
    scale = _scale(vectors, most)
    levels = np.rint(vectors / scale[:, None].astype(np.float32))
    codes = (levels + (most + 1)).astype(np.uint8)
    if bits == 8:
        return codes, scale
    codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return codes[:, 0::2] << 4 | codes[:, 1::2], scale


def dequantise(packed: NDArray[Any], scale: NDArray[Any], shape: tuple[int, int], bits: int) -> NDArray[np.float32]:
    """Vectors f4 of this shape, [n, d], from what `quantise` gave; q·scale is exact: 7 bits times 11.

    Raises:
        ProtocolError: arrays that `quantise` never gives.
    """
    rows, size = shape
    columns = packed_bytes(size, bits)
    if packed.dtype != np.uint8 or packed.shape != (rows, columns):
        raise ProtocolError(
            f"hidden at {bits} bits must be u1 [{rows}, {columns}], not {packed.dtype} {list(packed.shape)}"
        )
    if scale.dtype != np.float16 or scale.shape != (rows,):
        raise ProtocolError(f"scale must be f2 [{rows}], not {scale.dtype} {list(scale.shape)}")
    if not (np.isfinite(scale) & (scale >= SMALLEST_SCALE)).all():
        raise ProtocolError(f"scales of hidden states must be finite and {SMALLEST_SCALE:.3g} or more")
    codes = packed if bits == 8 else np.stack([packed >> 4, packed & 15], axis=-1).reshape(rows, 2 * columns)
    if codes[:, size:].any() or not codes[:, :size].all():
        raise ProtocolError(f"levels of hidden states must lie in 1..{2**bits - 1}, and padding must be 0")
    levels = codes[:, :size].astype(np.float32) - np.float32(2 ** (bits - 1))
    vectors: NDArray[np.float32] = levels * scale[:, None].astype(np.float32)
    return vectors


def degrade(hidden: NDArray[np.floating[Any]], bits: int) -> NDArray[np.float32]:
    """Vectors f4 [n, d] as they arrive at the BS when sent with `bits` bits per element.

    Raises:
        BadInput: `bits` is not 16, 8 or 4.
        ProtocolError: as `quantise`.
    """
    if check_bits(bits) == FULL_BITS:
        return hidden.astype(np.float16).astype(np.float32)
    rows, size = hidden.shape
    return dequantise(*quantise(hidden, bits), (rows, size), bits)


def _scale(vectors: NDArray[np.float32], most: int) -> NDArray[np.float16]:
    """The smallest normal float16 s of each vector with most·s ≥ its largest magnitude."""
    peak = np.abs(vectors).max(axis=1, initial=0.0).astype(np.float64)
    if not (peak <= most * float(np.finfo(np.float16).max)).all():
        raise ProtocolError("hidden states must be finite, and a float16 scale must reach them")
    nearest = (peak / most).astype(np.float16)
    short = nearest.astype(np.float64) * most < peak
    scale: NDArray[np.float16] = np.where(short, np.nextafter(nearest, np.float16(np.inf)), nearest)
    return np.maximum(scale, SMALLEST_SCALE)


# ---------------------------------------------------------------- draft distributions

MOST_ENTRIES = 2**16
"""Entries of a window that the BS unpacks."""


def pack_q(arrays: dict[str, AnyArray], sampling: Sampling) -> dict[str, AnyArray]:
    """Uplink arrays of a window as a session with this sampling sends them; `q` as the protocol has it, u2.

    Raises:
        BadInput: more entries than a window may have.
    """
    if not sampling.packed or "q" not in arrays:
        return arrays
    q = arrays["q"] // unit(sampling.q_bits)
    if q.ndim == 1 or not sampling.q_top:
        return {**arrays, "q": pack_bits(q.ravel(), sampling.q_bits)}
    top = min(sampling.q_top, q.shape[1])
    if len(q) * top > MOST_ENTRIES:
        raise BadInput(f"{len(q)} tokens with {top} ids each: use --window {MOST_ENTRIES // top} or less")
    ids = np.array([_support(row, top) for row in q], np.int64).reshape(len(q), top)
    entries = ids << sampling.q_bits | np.take_along_axis(q, ids, axis=1)
    return {**arrays, "q": pack_bits(entries.ravel(), id_bits(q.shape[1]) + sampling.q_bits)}


def unpack_q(arrays: dict[str, AnyArray], sampling: Sampling, vocab_size: int, whole: bool) -> dict[str, AnyArray]:
    """Inverse of `pack_q`; with `q_top`, `q` is u2 [K, k], and `top` i4 [K, k] the ids that it is about.

    Args:
        whole: whether `q` is about more than the drafted tokens.

    Raises:
        ProtocolError: `q` is not what `pack_q` makes for ids below `vocab_size`, or there is an array `top`.
    """
    if "top" in arrays:
        raise ProtocolError("windows have no array top")
    if not {"ids", "q"} <= arrays.keys():
        return arrays
    window, bits, q = arrays["ids"].size, sampling.q_bits, arrays["q"]
    if not sampling.packed:
        if whole and q.ndim == 2 and q.shape[1] != vocab_size:
            raise ProtocolError(f"distributions over {q.shape[1]} ids; the BS knows {vocab_size}")
        return arrays
    if not whole or not sampling.q_top:
        columns = (vocab_size,) if whole else ()
        counts = unpack_bits(q, window * vocab_size if whole else window, bits)
        return {**arrays, "q": _counts(counts, bits).reshape(window, *columns)}
    top, width = min(sampling.q_top, vocab_size), id_bits(vocab_size) + bits
    if window * top > MOST_ENTRIES:
        raise ProtocolError(f"{window} tokens with {top} ids each: at most {MOST_ENTRIES} entries")
    entries = unpack_bits(q, window * top, width).astype(np.int64).reshape(window, top)
    ids = entries >> bits
    if (ids >= vocab_size).any() or (ids[:, 1:] <= ids[:, :-1]).any():
        raise ProtocolError(f"ids of q must increase and lie in 0..{vocab_size - 1}")
    return {**arrays, "q": _counts(entries & (2**bits - 1), bits), "top": ids.astype(np.int32)}


def _counts(numbers: NDArray[np.integer], bits: int) -> Counts:
    counts: Counts = numbers.astype(np.uint16)
    counts *= np.uint16(unit(bits))
    return counts


def _support(row: NDArray[np.uint16], top: int) -> NDArray[np.int64]:
    """`top` ids in increasing order, among them all with a count."""
    ids = np.flatnonzero(row)
    others = np.setdiff1d(np.arange(top), ids)[: top - len(ids)]
    return np.sort(np.concatenate([ids, others]))
