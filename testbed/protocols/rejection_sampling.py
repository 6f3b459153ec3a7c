"""Speculative decoding by rejection sampling: with whole draft distributions uploaded, or split between UE and BS.

Both keep the target's distribution at any temperature, top-k and top-p. `protocols/sampling.py` says how; WISP Eq. 3
prints p where a rejected token is replaced, which would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from testbed.channel.cost import Payload, Sizes, full_distributions, split_distributions
from testbed.errors import BadInput, ProtocolError
from testbed.protocols.base import Drafted, RoundProtocol, Steps, Window, expect_names, read_ids, whole
from testbed.protocols.codec import MAX_ARRAY_BYTES, AnyArray
from testbed.protocols.quantise import FULL_BITS
from testbed.protocols.sampling import (
    ONE,
    Counts,
    Draws,
    Kept,
    Probs,
    accept,
    draw,
    pack_target,
    probabilities,
    read_target,
    residual,
)  # fmt: skip


class RejectionSampling(RoundProtocol):
    """The baseline "SD reject" of WISV Table I: all of q goes up, and the BS replaces a rejected token itself."""

    kind = "rejection"
    about = "rejection sampling: ids and whole draft distributions up"
    sampled = blockwise = True

    # ------------------------------------------------------------ UE side

    def uplink(self, drafted: Drafted) -> dict[str, AnyArray]:
        """`ids` i4 [K], `q` u2 [K, V]: counts of 1/65535.

        Raises:
            BadInput: the distributions of the window are larger than an array may be.
        """
        q = _of(drafted)
        if q.nbytes > MAX_ARRAY_BYTES:
            most = MAX_ARRAY_BYTES // q[:1].nbytes
            raise BadInput(f"distributions of {len(q)} tokens over {q.shape[1]} ids: use --window {most} or less")
        return {"ids": drafted.ids, "q": q}

    # ------------------------------------------------------------ BS side

    def window(self, arrays: dict[str, AnyArray], hidden_size: int, hidden_bits: int = FULL_BITS) -> Window:
        """Ids, and distributions that each add up to 1 and could have drawn their token; sparse ones with their ids in
        `top` (`sparse.unpack`).
        """
        top = arrays.get("top")
        expect_names({name: array for name, array in arrays.items() if name != "top"}, "ids", "q")
        ids, q = read_ids(arrays, least=0), arrays["q"]
        if q.dtype != np.uint16 or q.ndim != 2 or len(q) != len(ids):
            raise ProtocolError(f"q must be u2 [{len(ids)}, V], not {q.dtype} {list(q.shape)}")
        if top is None and ((ids < 0) | (ids >= q.shape[1])).any():
            raise ProtocolError(f"token ids must lie in 0..{q.shape[1] - 1}")
        if (q.sum(axis=1, dtype=np.int64) != ONE).any():
            raise ProtocolError(f"every row of q must add up to {ONE}")
        window = Window(ids, None, q, top=top)
        if not _of_tokens(window).all():
            raise ProtocolError("every drafted token must have a probability in q")
        return window

    def keep(self, window: Window, target: Callable[[int], Probs], draws: Draws) -> Kept:
        """See `RoundProtocol.keep`; a rejected token is replaced from the residual here."""
        return whole(self.keep_steps(window, target, draws))

    def keep_steps(self, window: Window, target: Callable[[int], Probs], draws: Draws) -> Steps[Kept]:
        """See `RoundProtocol.keep_steps`."""
        stays = yield from first_rejected(window, probabilities(_of_tokens(window)), target, draws)
        p = target(stays)
        left = residual(p, _row(window, stays, len(p))) if stays < len(window.ids) else p
        return Kept(stays, draw(left, draws.replace(stays)))

    def keep_block(self, window: Window, target: Callable[[int], Probs], draws: Draws) -> Kept:
        """See `RoundProtocol.keep_block`; the token after the accepted ones is drawn here, as in `keep`."""
        return whole(self.keep_block_steps(window, target, draws))

    def keep_block_steps(self, window: Window, target: Callable[[int], Probs], draws: Draws) -> Steps[Kept]:
        """See `RoundProtocol.keep_block_steps`."""

        def drawn_from(position: int) -> Probs:
            return _row(window, position, len(target(position)))

        stays, weights = yield from accept_block(window.ids.tolist(), drawn_from, target, draws.accept)
        return Kept(stays, draw(weights, draws.replace(stays)))

    # ------------------------------------------------------------ payload

    def payload(self, window: int, queried: int, sizes: Sizes) -> Payload:
        """WISV Table I, "SD reject"."""
        return full_distributions(window, sizes)


class SplitSampling(RoundProtocol):
    """DSSD's split: q(x) of each drafted token goes up; only on a rejection p comes down, and the UE, which has q,
    draws the token that replaces it. The BS learns that token with the next window.
    """

    kind = "split"
    about = "rejection sampling: ids and their probabilities up, the target's distribution down after a rejection"
    replaces = True
    sampled = True

    # ------------------------------------------------------------ UE side

    def uplink(self, drafted: Drafted) -> dict[str, AnyArray]:
        """`ids` i4 [K], `q` u2 [K]: counts of 1/65535; `token` i4 [1] where the round before ended in a rejection."""
        q = _of(drafted)[np.arange(len(drafted.ids)), drafted.ids]
        arrays: dict[str, AnyArray] = {"ids": drafted.ids, "q": q}
        return arrays if drafted.replaced is None else {**arrays, "token": np.array([drafted.replaced], np.int32)}

    def replace(self, drafted: Drafted, accepted: int, arrays: dict[str, AnyArray], draws: Draws) -> int:
        """See `RoundProtocol.replace`: drawn from the residual of the target's distribution and this side's q."""
        expect_names(arrays, "target")
        q = _of(drafted)
        if accepted >= len(q):
            raise ProtocolError("the target's distribution came though nothing was rejected")
        left = residual(read_target(arrays["target"], q.shape[1]), probabilities(q[accepted]))
        return draw(left, draws.replace(accepted))

    # ------------------------------------------------------------ BS side

    def window(self, arrays: dict[str, AnyArray], hidden_size: int, hidden_bits: int = FULL_BITS) -> Window:
        """Ids, their probabilities, and the token that the BS does not know yet."""
        token = None
        if "token" in arrays:
            arrays = dict(arrays)
            owed = arrays.pop("token")
            if owed.dtype != np.int32 or owed.shape != (1,):
                raise ProtocolError(f"token must be i4 [1], not {owed.dtype} {list(owed.shape)}")
            token = int(owed[0])
        expect_names(arrays, "ids", "q")
        ids, q = read_ids(arrays, least=0), arrays["q"]
        if q.dtype != np.uint16 or q.shape != ids.shape:
            raise ProtocolError(f"q must be u2 [{len(ids)}], not {q.dtype} {list(q.shape)}")
        if not q.all():
            raise ProtocolError("every drafted token must have a probability in q")
        return Window(ids, None, q, token)

    def keep(self, window: Window, target: Callable[[int], Probs], draws: Draws) -> Kept:
        """See `RoundProtocol.keep`; what comes down after a rejection is also what the window is judged by."""
        return whole(self.keep_steps(window, target, draws))

    def keep_steps(self, window: Window, target: Callable[[int], Probs], draws: Draws) -> Steps[Kept]:
        """See `RoundProtocol.keep_steps`."""
        assert window.q is not None
        packed = _Packed(target)
        stays = yield from first_rejected(window, probabilities(window.q), packed.probs, draws)
        if stays < len(window.ids):
            return Kept(stays, None, pack_target(target(stays)))
        return Kept(stays, draw(packed.probs(stays), draws.replace(stays)))

    # ------------------------------------------------------------ payload

    def payload(self, window: int, queried: int, sizes: Sizes) -> Payload:
        """See `split_distributions`; `queried` is 1 after a rejection."""
        return split_distributions(window, queried > 0, sizes)


def _of_tokens(window: Window) -> Counts:
    """Counts [K] of the drafted tokens, in whole or sparse distributions."""
    q = window.q
    assert q is not None
    if window.top is None:
        counts: Counts = q[np.arange(len(q)), window.ids]
    else:
        counts = np.where(window.top == window.ids[:, None], q, 0).sum(axis=1, dtype=np.uint16)
    return counts


def _row(window: Window, position: int, size: int) -> Probs:
    """The distribution [size] that the token at a position was drawn from."""
    assert window.q is not None
    probs = probabilities(window.q[position])
    if window.top is None:
        return probs
    row = np.zeros(size)
    row[window.top[position]] = probs
    return row


def accept_block(
    window: Sequence[int], q: Callable[[int], Probs], target: Callable[[int], Probs], accepted: Callable[[int], float]
) -> Steps[tuple[int, Probs]]:
    """Block verification (Sun et al., arXiv 2403.10444, Algorithm 2): the tokens of a window are accepted jointly.

    With s_0 = 1 and s_i = min(1, s_(i−1)·p(x_i)/q(x_i)), at least i tokens are accepted with probability s_i, given the
    first i. The output is distributed as the target's, and no rule that knows the same distributions accepts more
    tokens on average. Each position is a step (`RoundProtocol.keep_steps`).

    Args:
        window: drafted tokens [K].
        q: the distribution [V] that the token at a position was drawn from.
        target: the target's distribution [V] at a position, 0 to K.
        accepted: uniform number in [0, 1) of a position.

    Returns:
        The number of accepted tokens, and weights [V] by which the token after them is drawn.
    """
    stays, kept, share = 0, 1.0, 1.0
    for position, token in enumerate(window):
        share = min(1.0, share * float(target(position)[token]) / float(q(position)[token]))
        chance = share
        if position + 1 < len(window):
            left = float(np.maximum(share * target(position + 1) - q(position + 1), 0.0).sum())
            chance = left / (left + (1 - share)) if left > 0 else 0.0
        if accepted(position) < chance:
            stays, kept = position + 1, share
        yield
    p = target(stays)
    return stays, p if stays == len(window) else residual(kept * p, q(stays))


class _Packed:
    """The target's distributions as they would arrive at the UE."""

    def __init__(self, target: Callable[[int], Probs]) -> None:
        self._target = target

    def probs(self, position: int) -> Probs:
        p = self._target(position)
        return read_target(pack_target(p), len(p))


def first_rejected(
    window: Window, q: Sequence[float] | Probs, target: Callable[[int], Probs], draws: Draws
) -> Steps[int]:
    """The first position whose token does not stay, K if all do, in steps (`RoundProtocol.keep_steps`); `q` [K] is what
    each was drawn with.
    """
    for position, token in enumerate(window.ids.tolist()):
        if not accept(float(target(position)[token]), float(q[position]), draws.accept(position)):
            return position
        yield
    return len(window.ids)


def _of(drafted: Drafted) -> Counts:
    if drafted.q is None:
        raise ProtocolError("rejection sampling needs the drafter's distributions")
    return drafted.q
