"""Cost of a round on the link: payloads in bits and their latency (WISV Section IV-A, eqs. 3–10).

Symbols: K drafted tokens, V the vocabulary, m positions whose hidden states are requested, R a rate, p a packet error
rate. Packet errors are link-layer retransmissions, geometric, so that B bits take B / (R·(1 − p)) on average.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from testbed.channel.csi import Csi
from testbed.errors import BadInput

PROBABILITY_BITS = 16
"""Bits of a draft probability that goes up ("SD reject" of WISV Table I) or of a target probability that comes down
(`split`).
"""


class Sizes(NamedTuple):
    """Widths that a payload depends on."""

    hidden_size: int
    """d_d, of the drafter."""
    id_bits: int = 32
    """b_id; ceil(log2 V) in the papers, 32 on our wire."""
    hidden_bits: int = 16
    """b_h, bits of one element of a hidden state."""
    vocab_size: int = 0
    """V; only rejection sampling sends something for every entry."""
    scale_bits: int = 0
    """Bits of the scale sent with each quantised hidden state; 0 in the papers."""
    q_top: int = 0
    """k, ids of a sparse draft distribution; 0: all."""
    q_bits: int = PROBABILITY_BITS
    """b_q, bits of a draft probability."""

    @property
    def vector_bits(self) -> int:
        """B_h = d_d·b_h, one hidden state (eq. 3), and its scale."""
        return self.hidden_size * self.hidden_bits + self.scale_bits

    @property
    def distribution_bits(self) -> int:
        """One draft distribution: V·b_q, or k·(ceil(log2 V) + b_q) where it is sparse."""
        if not self.q_top:
            return self.vocab_size * self.q_bits
        return min(self.q_top, self.vocab_size) * (id_bits(self.vocab_size) + self.q_bits)


class Payload(NamedTuple):
    """Bits of one round without the fixed overheads, and the messages that carry those."""

    uplink_bits: int
    downlink_bits: int
    uplink_messages: int = 1
    downlink_messages: int = 1

    @property
    def round_trips(self) -> int:
        """Exchanges that each cost one T_rtt (eqs. 6, 10)."""
        return self.uplink_messages


class Overheads(NamedTuple):
    """Fixed bits of every message."""

    uplink_bits: int = 0
    """b_ul"""
    downlink_bits: int = 0
    """b_dl"""


NO_OVERHEADS = Overheads()


class LinkTime(NamedTuple):
    """Cost of one round on one link."""

    uplink_bits: int
    downlink_bits: int
    round_trips: int
    latency_s: float


def position_bits(window: int) -> int:
    """b_pos = ceil(log2(K+1)): bits of one position in a window of K tokens (WISV, below eq. 3)."""
    return max(1, math.ceil(math.log2(window + 1)))


def id_bits(vocab_size: int) -> int:
    """b_id = ceil(log2 V): bits of one token id.

    Raises:
        BadInput: fewer than one token.
    """
    if vocab_size < 1:
        raise BadInput(f"a vocabulary has 1 token or more, not {vocab_size}")
    return max(1, math.ceil(math.log2(vocab_size)))


def feedback_bits(window: int, sizes: Sizes) -> int:
    """B_fb without its overhead: the first rejected position and the corrected token (eq. 4)."""
    return position_bits(window) + sizes.id_bits


def ids_only(window: int, sizes: Sizes) -> Payload:
    """Greedy verification: K·b_id up, B_fb down."""
    return Payload(window * sizes.id_bits, feedback_bits(window, sizes))


def full_hidden(window: int, sizes: Sizes) -> Payload:
    """FH: K·(b_id + B_h) up (eq. 5), B_fb down (eq. 4)."""
    return Payload(window * (sizes.id_bits + sizes.vector_bits), feedback_bits(window, sizes))


def selective_hidden(window: int, queried: int, sizes: Sizes) -> Payload:
    """SH: K·b_id and m·B_h up (eqs. 7, 9), m·b_pos and B_fb down (eqs. 8, 4); one exchange where m = 0."""
    exchanges = 2 if queried else 1
    up = window * sizes.id_bits + queried * sizes.vector_bits
    down = queried * position_bits(window) + feedback_bits(window, sizes)
    return Payload(up, down, exchanges, exchanges)


def full_distributions(window: int, sizes: Sizes) -> Payload:
    """Rejection sampling ("SD reject"): K·(b_id + 16·V) up, as Table I has it (see the errata), B_fb down; fewer where
    distributions are sparse or coarser.
    """
    return Payload(window * (sizes.id_bits + sizes.distribution_bits), feedback_bits(window, sizes))


def split_distributions(window: int, rejected: bool, sizes: Sizes) -> Payload:
    """DSSD's split of rejection sampling: K·(b_id + b_q) up, each id with the probability it was drawn with, as
    min(1, p/q) needs; B_fb down, and after a rejection the target's distribution, 16·V, from which the UE draws the
    correction. The correction's b_id goes up with the next window, and is counted in B_fb.
    """
    down = feedback_bits(window, sizes) + (PROBABILITY_BITS * sizes.vocab_size if rejected else 0)
    return Payload(window * (sizes.id_bits + sizes.q_bits), down)


def transfer_s(bits: float, rate_mbps: float, per: float = 0.0) -> float:
    """Expected time of B bits: B / (R·(1 − p)) (the terms of eqs. 6 and 10)."""
    return bits / (rate_mbps * 1e6 * (1 - per))


def link_time(payload: Payload, csi: Csi, overheads: Overheads = NO_OVERHEADS) -> LinkTime:
    """Bits with overheads, and the latency of eq. 6 (one exchange) or eq. 10 (two)."""
    up = payload.uplink_bits + payload.uplink_messages * overheads.uplink_bits
    down = payload.downlink_bits + payload.downlink_messages * overheads.downlink_bits
    moving_s = transfer_s(up, csi.uplink_mbps, csi.per_up) + transfer_s(down, csi.downlink_mbps, csi.per_down)
    return LinkTime(up, down, payload.round_trips, moving_s + payload.round_trips * csi.rtt_ms / 1e3)
