"""What a protocol is: how a window travels up, what the BS asks for, and how many bits that takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import ProtocolError
from testbed.protocols.codec import AnyArray, position_bits

HEADER_UP_BYTES = 112
"""Largest header of an uplink message of a round: the overhead b_ul of the cost model (WISV eq. 5) on our wire."""
HEADER_DOWN_BYTES = 112
"""Largest header of a downlink message of a round; the fixed overhead b_dl (WISV eq. 4) on our wire."""


class Drafted(NamedTuple):
    """A drafted window as the UE holds it."""

    ids: NDArray[np.int32]
    """[K]"""
    hidden: NDArray[np.float16]
    """[K, hidden_size] states that predicted the ids."""


class Window(NamedTuple):
    """A drafted window as the BS received it."""

    ids: NDArray[np.int32]
    """[K]"""
    hidden: NDArray[np.float16] | None
    """[K, hidden_size] where the protocol uploads all of them."""


class Sizes(NamedTuple):
    """Widths that a payload depends on, in bits (WISV eqs. 3–9)."""

    hidden_size: int
    """d_d, of the drafter."""
    id_bits: int = 32
    hidden_bits: int = 16


class Payload(NamedTuple):
    """Bits of one round without the fixed overheads, and the messages that carry those."""

    uplink_bits: int
    downlink_bits: int
    uplink_messages: int
    downlink_messages: int

    @property
    def round_trips(self) -> int:
        """Exchanges that each cost one T_rtt (WISV eqs. 6, 10)."""
        return self.uplink_messages


class RoundProtocol:
    """One way of carrying a round; subclasses say what differs from ids up, verdict down."""

    kind: ClassVar[str]
    judged: ClassVar[bool] = False
    """Whether mismatches go to the judge; if not, the first one ends the window."""

    # ------------------------------------------------------------ UE side

    def uplink(self, drafted: Drafted) -> dict[str, AnyArray]:
        """Arrays of the `Draft` message."""
        return {"ids": drafted.ids}

    def reveal(self, drafted: Drafted, positions: Sequence[int]) -> dict[str, AnyArray]:
        """Arrays of the `Hidden` message that answers a request for `positions`.

        Raises:
            ProtocolError: this protocol never asks.
        """
        raise ProtocolError(f"protocol {self.kind} asks for no hidden states")

    # ------------------------------------------------------------ BS side

    def window(self, arrays: dict[str, AnyArray], hidden_size: int) -> Window:
        """Read the arrays of a `Draft`.

        Raises:
            ProtocolError: arrays missing, of a wrong dtype or shape, or not finite.
        """
        expect_names(arrays, "ids")
        return Window(read_ids(arrays), None)

    def asks_for(self, candidates: Sequence[int]) -> Sequence[int]:
        """Positions whose hidden states the BS must request before it can judge."""
        return ()

    # ------------------------------------------------------------ payload

    def payload(self, window: int, queried: int, sizes: Sizes) -> Payload:
        """Bits of a round with `window` = K drafted tokens and `queried` = m requested positions."""
        return Payload(window * sizes.id_bits, feedback_bits(window, sizes), 1, 1)


def feedback_bits(window: int, sizes: Sizes) -> int:
    """B_fb without its overhead: the first rejected position and the corrected token (WISV eq. 4)."""
    return position_bits(window) + sizes.id_bits


def expect_names(arrays: dict[str, AnyArray], *names: str) -> None:
    """Refuse any other set of arrays."""
    if set(arrays) != set(names):
        raise ProtocolError(f"expected the arrays {', '.join(names)}; got {', '.join(sorted(arrays)) or 'none'}")


def read_ids(arrays: dict[str, AnyArray]) -> NDArray[np.int32]:
    """The id array, i4 [n], n ≥ 1."""
    ids = arrays["ids"]
    if ids.dtype != np.int32 or ids.ndim != 1 or not len(ids):
        raise ProtocolError(f"ids must be i4 [n], n ≥ 1, not {ids.dtype} {list(ids.shape)}")
    return ids


def read_hidden(arrays: dict[str, AnyArray], rows: int, hidden_size: int) -> NDArray[np.float16]:
    """The hidden-state array, f2 [rows, hidden_size], finite."""
    hidden = arrays["hidden"]
    if hidden.dtype != np.float16 or hidden.shape != (rows, hidden_size):
        raise ProtocolError(f"hidden must be f2 [{rows}, {hidden_size}], not {hidden.dtype} {list(hidden.shape)}")
    if not np.isfinite(hidden).all():
        raise ProtocolError("hidden states must be finite")
    return hidden
