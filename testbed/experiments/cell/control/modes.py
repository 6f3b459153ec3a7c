"""Bits of rounds by protocol, and what θ changes, as the loops need them."""

from __future__ import annotations

from functools import lru_cache

from testbed.channel.cost import NO_OVERHEADS, Overheads, Sizes
from testbed.experiments.cell.control.judgements import Judgements
from testbed.optim.loops.state import RoundMode
from testbed.protocols import protocol
from testbed.protocols.base import RoundProtocol


def round_mode(
    kind: str,
    acceptance: tuple[float, ...],
    sizes: Sizes,
    overheads: Overheads = NO_OVERHEADS,
    asked: float = 0.0,
) -> RoundMode:
    """A mode with the bits of the protocol's `payload`, which grow linearly with the window but for a few.

    Args:
        asked: requested hidden states per drafted token, for protocols that request them.

    Raises:
        BadInput: an unknown protocol.
    """
    carried = protocol(kind)
    fixed_bits, token_bits, asked_bits = _bits(carried, sizes)
    return RoundMode(
        protocol=kind, acceptance=acceptance, token_bits=token_bits, fixed_bits=fixed_bits + overheads.uplink_bits,
        asked=asked if carried.asks_for([0]) else 0.0, asked_bits=asked_bits,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _bits(carried: RoundProtocol, sizes: Sizes) -> tuple[int, int, int]:
    """Bits of a round without tokens, and what a drafted token and a requested hidden state add."""
    one, two = (carried.payload(window, 0, sizes).uplink_bits for window in (1, 2))
    asked_bits = carried.payload(2, 1, sizes).uplink_bits - two if carried.asks_for([0]) else 0
    return 2 * one - two, two - one, asked_bits


def judged(mode: RoundMode, judgements: Judgements, threshold: float | None) -> RoundMode:
    """A mode at a θ; None: the one that its acceptance rates were measured at."""
    if threshold is None:
        return mode
    acceptance, risk = judgements.acceptance(mode.acceptance, threshold), judgements.risk(threshold)
    return mode._replace(acceptance=acceptance, threshold=threshold, risk=risk)


def ahead(mode: RoundMode, judgements: Judgements, looks: bool) -> RoundMode:
    """A mode with windows that are sent before the verdict of the one before them, or without.

    The guess of the target's token is a drafted one, which no judge helps.
    """
    if not looks:
        return mode
    return mode._replace(ahead=1.0, guess=judgements.strict if protocol(mode.protocol).judged else 1.0)
