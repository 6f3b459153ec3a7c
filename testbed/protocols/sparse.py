"""Draft distributions on the wire at fewer bits: the `q_top` most likely ids, and `q_bits` bits for each probability.

The UE draws from the distribution that it sends, so that what is left out or rounded costs acceptance, never
losslessness (quantise-then-sample, arXiv 2507.00605; sparse lattice, arXiv 2510.09942). A count of b bits stands for
65535 / (2^b − 1) counts of `sampling.ONE`, so that everything but the frame `q` is as with 16 bits. That frame is u1
[n], the first bit of each number first, padded with zeros to whole bytes:

- with `q_top`, k entries for each token of the window, by increasing id: ceil(log2 V) bits of the id, b of the count;
- otherwise V counts of b bits for each token, and under `split` one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.channel.cost import id_bits
from testbed.errors import BadInput, ProtocolError
from testbed.protocols.codec import AnyArray, pack_bits, unpack_bits
from testbed.protocols.sampling import Counts, Sampling, unit

MOST_ENTRIES = 2**16
"""Entries of a window that the BS unpacks."""


def pack(arrays: dict[str, AnyArray], sampling: Sampling) -> dict[str, AnyArray]:
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


def unpack(arrays: dict[str, AnyArray], sampling: Sampling, vocab_size: int, whole: bool) -> dict[str, AnyArray]:
    """Inverse of `pack`; with `q_top`, `q` is u2 [K, k], and `top` i4 [K, k] the ids that it is about.

    Args:
        whole: whether `q` is about more than the drafted tokens.

    Raises:
        ProtocolError: `q` is not what `pack` makes for ids below `vocab_size`, or there is an array `top`.
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
    counts: Counts = numbers.astype(np.uint16) * np.uint16(unit(bits))
    return counts


def _support(row: NDArray[np.uint16], top: int) -> NDArray[np.int64]:
    """`top` ids in increasing order, among them all with a count."""
    ids = np.flatnonzero(row)
    others = np.setdiff1d(np.arange(top), ids)[: top - len(ids)]
    return np.sort(np.concatenate([ids, others]))
