"""State of a cell, from which bandwidth, windows and protocols are decided together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.optim.draft_window.cost import MAX_WINDOW
from testbed.optim.pass_time import Coefficients

LEAST_BPS = 1e3
"""Rate that counts for a UE in an outage."""


class RoundMode(NamedTuple):
    """A way of carrying rounds: a protocol, and how much its judge may keep; from the third field on, numbers."""

    protocol: str = "greedy"
    acceptance: tuple[float, ...] = (0.8,)
    """α by position in the window, given that all tokens before were accepted; the last one holds for those behind."""
    token_bits: float = 32.0
    """Bits of a drafted token on the uplink."""
    fixed_bits: float = 0.0
    """Bits of a round on the uplink, whatever its window."""
    asked: float = 0.0
    """Probability that the hidden state of a drafted token is requested (SH)."""
    asked_bits: float = 0.0
    """Bits of a requested hidden state."""
    threshold: float = 0.0
    """θ of the judge."""
    risk: float = 0.0
    """Expected risk that a drafted token adds if those before it are accepted: −ln(1 − p) of what the judge keeps."""
    ahead: float = 0.0
    """1: lookahead, the next window is drafted and sent while the verdict of the last one is on its way; else 0."""
    guess: float = 1.0
    """Largest probability that the target's token after an accepted window is guessed; α of the position behind the
    window may be lower."""


@dataclass(frozen=True, slots=True)
class UeState:
    """A UE as it is estimated.

    Raises:
        BadInput: windows, probabilities or times that cannot be.
    """

    rate_bps: float
    """Uplink rate that it would have alone in the cell."""
    draft_s: float
    """Drafting time per token."""
    link_s: float = 0.0
    """Time of a round trip of short messages."""
    modes: tuple[RoundMode, ...] = (RoundMode(),)
    """The ways between which to choose; one: it is given."""
    windows: tuple[int, int] = (1, 8)
    """Least and largest window; equal: it is given. 0: the BS decodes alone, and nothing is drafted or sent."""
    speed_tps: float | None = None
    """Promised token speed [tokens/s]; None: none."""
    activity: float = 1.0
    """q: share of its time, in (0, 1], during which it has data for the uplink; 1: always. Not for measured cells."""
    joins: float = 1.0
    """p: its rounds per pass of the BS, in [0, 1]; 1: every pass verifies a round of it. Not for measured cells."""
    weight: float = 1.0
    """φ: its radio weight until now, for cells that are measured."""
    cached: float = 0.0
    """Tokens of its committed prefix in the BS's cache."""
    extra: float = 0.0
    """Tokens that a pass computes for it beside its window and one."""
    backlog_bits: float = 0.0
    """Bits that wait on its uplink before the next round's."""
    draft_j: float = 0.0
    """Energy per drafted token [J]."""
    bit_j: float = 0.0
    """Energy per bit on the uplink [J]."""

    def __post_init__(self) -> None:
        low, high = self.windows
        if not 0 <= low <= high <= MAX_WINDOW:
            raise BadInput(f"windows lie in 0..{MAX_WINDOW}, not {low}..{high}")
        if not self.modes or not all(mode.acceptance for mode in self.modes):
            raise BadInput("a UE needs a way of carrying rounds, with an acceptance rate")
        if not (0 < self.activity <= 1 and 0 <= self.joins <= 1):
            raise BadInput(f"activity lies in (0, 1] and joins in [0, 1], not {self.activity:g} and {self.joins:g}")
        if not self.weight > 0:
            raise BadInput(f"a radio weight is positive, not {self.weight:g}")
        if not all(value >= 0 for value in (self.rate_bps, self.draft_s, self.link_s, self.backlog_bits, self.extra)):
            raise BadInput("rates, times and backlogs must be 0 or more")


class Measured(NamedTuple):
    """What is measured of a cell that serves; rounds per pass and activity of all choices follow from it."""

    pass_s: float
    """Mean pass."""
    sending: float = 0.0
    """Φ: mean of the sum of the weights of UEs that have data for the uplink."""
    rounds: float = 1.0
    """κ: rounds that were verified, relative to those that the model expected."""


@dataclass(frozen=True)
class CellState:
    """A cell: its UEs with a response in progress, and the verifier that they share.

    Raises:
        BadInput: no UE, or rounds that cannot be.
    """

    ues: Sequence[UeState]
    passes: Coefficients
    """Pass times, eq. 19 of WISP."""
    waits: float = 1.0
    """h: passes that a round stays at the BS on average: its own, and what is left of the one before."""
    measured: Measured | None = None
    """None: UEs have the same rounds per pass and activity whatever is decided."""
    prompts: float = 0.0
    """f: share of the verifier's time, in [0, 1), that prompts take, whatever is decided."""
    served: float = 1.0
    """Rounds per pass of a UE for which the BS decodes alone; below 1 where the scheduler leaves requests waiting."""

    def __post_init__(self) -> None:
        if not self.ues:
            raise BadInput("nothing to decide: no UE decodes")
        if not self.waits >= 1:
            raise BadInput(f"a round stays for at least its own pass, not {self.waits:g}")
        if self.measured is not None and not (
            self.measured.pass_s > 0 and self.measured.sending >= 0 and self.measured.rounds > 0
        ):
            raise BadInput("the mean pass and the rounds must be positive, and what is sent 0 or more")
        if not 0 <= self.prompts < 1:
            raise BadInput(f"prompts take a share of the time in [0, 1), not {self.prompts:g}")
        if not 0 < self.served <= 1:
            raise BadInput(f"a UE has at most one round in a pass, and some in the long run, not {self.served:g}")
