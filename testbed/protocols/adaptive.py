"""Choice of the hidden-state protocol of a request (`auto`): by RTT as on WISV's testbed, or by expected latency."""

from __future__ import annotations

from typing import NamedTuple

from testbed.channel.cost import NO_OVERHEADS, Overheads, Sizes, transfer_s
from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.protocols.fh import FullHidden
from testbed.protocols.sh import SelectiveHidden

FULL_HIDDEN_RTT_MS = 10.0
"""FH above this RTT, SH below it (WISV Section VII-B)."""
RULES = ("rtt", "latency")
FH, SH = FullHidden(), SelectiveHidden()


class Choice(NamedTuple):
    """A protocol and why."""

    kind: str
    reason: str


def by_rtt(rtt_ms: float) -> Choice:
    """The paper's rule: FH where a second exchange costs more than 10 ms (WISV Section VII-B)."""
    if rtt_ms > FULL_HIDDEN_RTT_MS:
        return Choice(FH.kind, f"RTT {rtt_ms:.3g} ms > {FULL_HIDDEN_RTT_MS:g} ms")
    return Choice(SH.kind, f"RTT {rtt_ms:.3g} ms <= {FULL_HIDDEN_RTT_MS:g} ms")


class ByLatency:
    """FH or SH, whichever is expected to take less time on the link (WISV eqs. 6, 10).

    SH's cost needs two means, which are learnt from the rounds: m, the requested positions, and the share of rounds
    with m > 0. Learning starts from one assumed round with one position.
    """

    def __init__(self, window: int, sizes: Sizes, overheads: Overheads = NO_OVERHEADS) -> None:
        """Set up the rule.

        Args:
            sizes: `quantised` where hidden states travel below 16 bits.

        Raises:
            BadInput: a window below 1.
        """
        if window < 1:
            raise BadInput(f"a window has 1 token or more, not {window}")
        self._window, self._sizes, self._overheads = window, sizes, overheads
        self._rounds, self._candidates, self._mismatched = 1, 1, 1

    def observe(self, candidates: int) -> None:
        """A round ended with `candidates` mismatched positions."""
        self._rounds += 1
        self._candidates += candidates
        self._mismatched += candidates > 0

    @property
    def mean_candidates(self) -> float:
        """Running mean of m."""
        return self._candidates / self._rounds

    def expected_s(self, kind: str, csi: Csi) -> float:
        """Expected time of one round on the link."""
        if kind == FH.kind:
            return FH.cost(self._window, 0, self._sizes, csi, self._overheads).latency_s
        share = self._mismatched / self._rounds
        without = SH.cost(self._window, 0, self._sizes, csi, self._overheads).latency_s
        one = SH.cost(self._window, 1, self._sizes, csi, self._overheads).latency_s
        position_s = transfer_s(self._sizes.vector_bits, csi.uplink_mbps, csi.per_up)
        return without + share * (one - without - position_s) + self.mean_candidates * position_s

    def choose(self, csi: Csi) -> Choice:
        """The cheaper one; SH where they are equal."""
        full_s, selective_s = self.expected_s(FH.kind, csi), self.expected_s(SH.kind, csi)
        kind = FH.kind if full_s < selective_s else SH.kind
        return Choice(kind, f"fh {full_s * 1e3:.3g} ms, sh {selective_s * 1e3:.3g} ms, m {self.mean_candidates:.3g}")
