"""The protocol seam: arrays of a window, hidden states that the BS requests, and bits on the link."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from testbed.channel.cost import NO_OVERHEADS, LinkTime, Overheads, Payload, Sizes, ids_only, link_time
from testbed.channel.csi import Csi
from testbed.errors import BadInput, ProtocolError
from testbed.protocols.codec import AnyArray
from testbed.protocols.quantise import FULL_BITS, dequantise, quantise
from testbed.protocols.sampling import Counts, Draws, Kept, Probs

R = TypeVar("R")
Steps: TypeAlias = Generator[None, None, R]
"""A computation in steps, which can be interrupted after each."""
HEADER_UP_BYTES = 176
"""Largest header of an uplink message of a round: the overhead b_ul of the cost model (WISV eq. 5) on our wire."""
HEADER_DOWN_BYTES = 112
"""Largest header of a downlink message of a round; the fixed overhead b_dl (WISV eq. 4) on our wire."""


class Drafted(NamedTuple):
    """A drafted window as the UE holds it."""

    ids: NDArray[np.int32]
    """[K], K ≥ 0"""
    hidden: NDArray[np.float16]
    """[K, hidden_size] hidden states that predicted the ids."""
    q: Counts | None = None
    """[K, V] distribution that each token was drawn from, under a protocol that samples: see `protocols.sampling`."""
    replaced: int | None = None
    """The last committed token, where the UE drew it and the BS does not know it yet."""
    hidden_bits: int = FULL_BITS
    """Bits per element of uploaded hidden states: see `protocols.quantise`."""
    left_out: int = 0
    """Number of tokens that were drafted after these and are not sent."""
    unchecked: int = 0
    """Tokens at the beginning of which the drafter is sure, under a protocol that skips their verification."""


class Window(NamedTuple):
    """A drafted window as the BS received it."""

    ids: NDArray[np.int32]
    """[K], K ≥ 0"""
    hidden: NDArray[np.float16] | NDArray[np.float32] | None
    """[K, hidden_size] hidden states as received, where the protocol uploads all of them."""
    q: Counts | None = None
    """[K, V] distributions that the tokens were drawn from, or [K] the counts of the tokens alone."""
    token: int | None = None
    """The token before the window, where the UE drew it."""
    top: NDArray[np.int32] | None = None
    """[K, k] ids that the columns of `q` [K, k] stand for, the others being 0; None: all ids."""
    unchecked: int = 0
    """Tokens at the beginning that are accepted whatever the target says."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in (self.ids, self.hidden, self.q, self.top) if array is not None)


class RoundProtocol:
    """One way of carrying a round; the base class sends ids up and a verdict down, subclasses override what differs."""

    kind: ClassVar[str]
    about: ClassVar[str]
    """One line for help screens."""
    judged: ClassVar[bool] = False
    """Whether mismatches go to the judge; otherwise the first one ends the window."""
    sampled: ClassVar[bool] = False
    """Whether tokens are drawn by rejection sampling; then `keep` decides which are accepted."""
    coupled: ClassVar[bool] = False
    """Whether tokens are always chosen by coupled sampling; other protocols that do not draw tokens can be asked to."""
    skips: ClassVar[bool] = False
    """Whether tokens of which the drafter is sure are accepted unchecked, with θ > 0; outputs are then not the target's
    own."""
    blockwise: ClassVar[bool] = False
    """Whether its windows can be verified as a block, by `keep_block`."""
    replaces: ClassVar[bool] = False
    """Whether the UE draws the token after a rejection, by `replace`; then the BS cannot decode on without the UE."""
    beside: ClassVar[str] = ""
    """Protocol whose windows its sessions take, too, and which a BS may hint; empty: none."""

    def carried(self, arrays: Collection[str]) -> RoundProtocol:
        """The protocol of a window with arrays of these names: this one, or the one beside it."""
        return self

    # ------------------------------------------------------------ UE side

    def uplink(self, drafted: Drafted) -> dict[str, AnyArray]:
        """Arrays of the `Draft` message."""
        return {"ids": drafted.ids}

    def reveal(self, drafted: Drafted, positions: Sequence[int]) -> dict[str, AnyArray]:
        """Arrays of the `Hidden` message that answers a request for `positions`.

        Raises:
            ProtocolError: this protocol never requests any.
        """
        raise ProtocolError(f"protocol {self.kind} asks for no hidden states")

    def replace(self, drafted: Drafted, accepted: int, arrays: dict[str, AnyArray], draws: Draws) -> int:
        """The token after the first `accepted` ones, where a `Verdict` with `arrays` leaves it to the UE.

        Raises:
            ProtocolError: this protocol never does, or wrong arrays.
        """
        raise ProtocolError(f"protocol {self.kind} draws no tokens at the UE")

    # ------------------------------------------------------------ BS side

    def window(self, arrays: dict[str, AnyArray], hidden_size: int, hidden_bits: int = FULL_BITS) -> Window:
        """Read the arrays of a `Draft`.

        Raises:
            ProtocolError: arrays missing, of a wrong dtype or shape, or not finite.
        """
        expect_names(arrays, "ids")
        return Window(read_ids(arrays, least=0), None)

    def asks_for(self, candidates: Sequence[int]) -> Sequence[int]:
        """Positions whose hidden states the BS must request before it can judge."""
        return ()

    def keep(self, window: Window, target: Callable[[int], Probs], draws: Draws) -> Kept:
        """Accepted tokens and what follows, where tokens are drawn; `target` gives p at a position, 0 to K."""
        raise ProtocolError(f"protocol {self.kind} draws no tokens")

    def keep_block(self, window: Window, target: Callable[[int], Probs], draws: Draws) -> Kept:
        """See `keep`; the tokens are accepted jointly (`rejection_sampling.accept_block`)."""
        raise ProtocolError(f"protocol {self.kind} has no block verification")

    def keep_steps(self, window: Window, target: Callable[[int], Probs], draws: Draws) -> Steps[Kept]:
        """The result of `keep` in steps that read one new position each, or in a single step."""
        return self.keep(window, target, draws)
        yield

    def keep_block_steps(self, window: Window, target: Callable[[int], Probs], draws: Draws) -> Steps[Kept]:
        """The result of `keep_block` in steps: see `keep_steps`."""
        return self.keep_block(window, target, draws)
        yield

    # ------------------------------------------------------------ payload

    def payload(self, window: int, queried: int, sizes: Sizes) -> Payload:
        """Bits of a round, headers left out: what its messages cost in virtual time and under `channel cost`.

        The difference that `queried` makes is the cost of `NeedHidden` and `Hidden` where there are two exchanges, else
        that of the verdict.

        Args:
            window: K drafted tokens; 0 where the BS decodes alone.
            queried: m requested positions; where there is no second exchange, 1 if the verdict holds a distribution.
        """
        return ids_only(window, sizes)

    def cost(self, window: int, queried: int, sizes: Sizes, csi: Csi, overheads: Overheads = NO_OVERHEADS) -> LinkTime:
        """Cost of one round on one link (WISV eqs. 6, 10).

        Raises:
            BadInput: a window below 1, more positions than the window has, or negative sizes.
        """
        if window < 1 or not 0 <= queried <= window:
            raise BadInput(f"a window has 1 token or more and 0 to K queried positions, not {window} and {queried}")
        if min(*sizes, *overheads) < 0 or sizes.id_bits < 1:
            raise BadInput("sizes and overheads in bits must not be negative, and ids have 1 bit or more")
        return link_time(self.payload(window, queried, sizes), csi, overheads)


def whole(steps: Steps[R]) -> R:
    """The result of a computation in steps, all taken at once."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: R = done.value
    return result


def expect_names(arrays: dict[str, AnyArray], *names: str) -> None:
    """Refuse any other set of arrays."""
    if set(arrays) != set(names):
        raise ProtocolError(f"expected the arrays {', '.join(names)}; got {', '.join(sorted(arrays)) or 'none'}")


def read_ids(arrays: dict[str, AnyArray], least: int = 1) -> NDArray[np.int32]:
    """The id array, i4 [n], n ≥ `least`: a window may be empty, a prefix may not."""
    ids = arrays["ids"]
    if ids.dtype != np.int32 or ids.ndim != 1 or len(ids) < least:
        raise ProtocolError(f"ids must be i4 [n], n ≥ {least}, not {ids.dtype} {list(ids.shape)}")
    return ids


def hidden_names(bits: int) -> tuple[str, ...]:
    """Names of the arrays of hidden states."""
    return ("hidden",) if bits == FULL_BITS else ("hidden", "scale")


def hidden_arrays(hidden: NDArray[np.float16], bits: int) -> dict[str, AnyArray]:
    """Uplink arrays of hidden states [n, d]: `hidden` f2 [n, d], or `hidden` u1 and `scale` f2 [n] below 16 bits."""
    arrays = (np.asarray(hidden, np.float16),) if bits == FULL_BITS else quantise(hidden, bits)
    return dict(zip(hidden_names(bits), arrays, strict=True))


def read_hidden(
    arrays: dict[str, AnyArray], rows: int, hidden_size: int, bits: int = FULL_BITS
) -> NDArray[np.float16] | NDArray[np.float32]:
    """Received hidden states [rows, hidden_size], finite: f2, or f4 where they were quantised."""
    hidden = arrays["hidden"]
    if bits != FULL_BITS:
        return dequantise(hidden, arrays["scale"], (rows, hidden_size), bits)
    if hidden.dtype != np.float16 or hidden.shape != (rows, hidden_size):
        raise ProtocolError(f"hidden must be f2 [{rows}, {hidden_size}], not {hidden.dtype} {list(hidden.shape)}")
    if not np.isfinite(hidden).all():
        raise ProtocolError("hidden states must be finite")
    return hidden
