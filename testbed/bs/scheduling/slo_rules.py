"""Deadlines of rounds with a token-speed guarantee (WISP, eqs. 5 and 6), the corrections of Algorithm 1, the places
that requests without a guarantee leave to others, and the prompts that are computed at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal


def geometric(acceptance: float, drafted: int) -> float:
    """Expected tokens of a round if each drafted token is accepted with probability α, up to the first rejection, the
    verifier's own token included: (1 − α^(K+1)) / (1 − α); α is accepted / (accepted + first rejections).
    """
    return drafted + 1.0 if acceptance >= 1 else (1 - acceptance ** (drafted + 1)) / (1 - acceptance)


def linear(acceptance: float, drafted: int) -> float:
    """α·K + 1: eq. 5 and the verifier's own token; α is accepted / drafted."""
    return acceptance * drafted + 1


LINEAR = "linear"
COMMITTED: dict[str, Callable[[float, int], float]] = {"geometric": geometric, LINEAR: linear}
"""Expected tokens of a round, from α and the number drafted; each with its own definition of α."""


def budget_s(
    committed: float, speed_tps: float, draft_s: float, network_s: float, ahead_s: float = 0.0, spend: float = 0.0
) -> float:
    """τ: time for queueing and verification if `committed` tokens are to arrive at the guaranteed speed (eq. 6).

    An output ahead of its guarantee may lose the share `spend` of its lead in this round; one that is behind must make
    up all of it. (The paper treats each round separately.) Never below 0: a request that is late on arrival was due on
    arrival, not before earlier requests.
    """
    slack_s = spend * ahead_s if ahead_s > 0 else ahead_s
    return max(0.0, committed / speed_tps - max(0.0, draft_s) - max(0.0, network_s) + slack_s)


@dataclass(frozen=True)
class Rules:
    """Corrections of Algorithm 1; the defaults are all of them."""

    late: Literal["edf", "last", "stop"] = "edf"
    """A request that can no longer meet its deadline: is served in order of deadlines, after all others, or is
    infeasible as printed, so that it is never served."""
    own_token: bool = True
    """Whether the verifier's own token counts towards the guarantee."""
    filling: bool = True
    """Whether the batch grows on after a request that does not fit; otherwise that one ends it (lines 20–22, 30)."""


REPAIRED = Rules()
PRINTED = Rules(late="stop", own_token=False, filling=False)
"""Algorithm 1 as printed: a late request is never served, and neither is any behind it."""

UNHURRIED = 10
"""Multiple of the patience with requests without a guarantee from which on the time that is left to one with a
guarantee makes it like them: a low guarantee would have passes last as long as its deadline is far.
"""


class Places:
    """Time or tokens of a pass that requests without a guarantee leave to the first request of each other UE: what it
    takes, and at most an equal part for each UE, which the first request of the UE itself has, too. Late ones would
    otherwise fill pass after pass, and a prompt that came after them would not begin. Where a part would be too small
    for a piece of a prompt, the first UEs of the line have parts that are not.

    Args:
        line: UE and time or tokens of each request, in the order in which they would be taken.
        most: of the longest pass that they may cause, beyond what it takes without them.
        piece: of the smallest piece.
    """

    def __init__(self, line: Sequence[tuple[bytes, float]], most: float, piece: float) -> None:
        first = dict[bytes, float]()
        for ue, share in line:
            first.setdefault(ue, share)
        self._part = min(max(0.0, most), max(max(0.0, most) / max(1, len(first)), piece))
        self._left, left = dict[bytes, float](), most
        for ue, share in first.items():
            if (part := min(share, self._part)) <= left:
                self._left[ue], left = part, left - part
        self._sum = math.fsum(self._left.values())

    def room(self, ue: bytes, left: float) -> float:
        """Time or tokens for a request of a UE, of what is left of the pass."""
        if ue not in self._left:
            return left - max(0.0, self._sum)
        return max(left - max(0.0, self._sum - self._left[ue]), min(left, self._part))

    def take(self, ue: bytes) -> None:
        """A request of this UE is in the pass."""
        self._sum -= self._left.pop(ue, 0.0)


class BegunPrompts:
    """Prompts that are computed in pieces at once: at most half of the sessions and of the tokens that the engine has
    room for, and beyond that half one of each UE that has none. With more, each would lose its place before its turn
    came again, and none would be finished. Others wait; where one has no room, none behind it in the line has.

    Args:
        begun: UE and length of each prompt of which some is computed, or is being computed.
        sessions: sessions whose keys and values the engine holds; None: any number.
        tokens: tokens whose keys and values it holds; None: any number.
    """

    def __init__(self, begun: Iterable[tuple[bytes, int]], sessions: int | None, tokens: float | None) -> None:
        self._sessions = math.inf if sessions is None else max(1, sessions // 2)
        self._tokens = math.inf if tokens is None else tokens
        self._counts, self._sum, self._full = Counter[bytes](), 0, set[bool]()
        for ue, length in begun:
            self.take(ue, length)

    def of(self, ue: bytes) -> int:
        """Number of a UE's prompts."""
        return self._counts[ue]

    def room(self, ue: bytes, length: int) -> bool:
        """Whether a prompt of this length may begin."""
        first = not self._counts[ue]
        count, most = (len(self._counts), self._tokens) if first else (self._counts.total(), self._tokens / 2)
        if self._counts.total() and (count >= self._sessions or self._sum + length > most):
            self._full |= {first, False}
        return first not in self._full

    def take(self, ue: bytes, length: int) -> None:
        """A prompt begins."""
        self._counts[ue] += 1
        self._sum += length
