"""A request waiting for the engine, as schedulers see it, and the round that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.coupled import Choices
from testbed.channel.csi import Csi
from testbed.protocols.base import Window

PIECE = 64
"""Pieces of a prompt end at multiples of this many tokens, so that they leave whole blocks in the prefix cache."""
READ_PER_NEW = 32
"""Cached tokens that count as one new token for a UE's share of a pass. By WISP's coefficients for an A100, a / b_read
is 7 (Table 12) or 54 (Section 4.4)."""
LEAST_WEIGHT = 16
"""Least number of tokens that a request counts for, so that 512 of them are 32 requests at most."""
_NOTHING = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A request waiting for the engine."""

    request: VerifyRequest
    arrived_s: float
    """Time of arrival, on the server's clock."""
    computed: int
    """Leading tokens of the prefix that the engine has computed in this session."""
    speed_tps: float | None = None
    """Guaranteed token speed [tokens/s], the service class; None: no guarantee."""
    draft_s: float = 0.0
    """Drafting time since the last verdict."""
    network_s: float = 0.0
    """Time of the round's messages on the link, both ways."""
    ahead_s: float = 0.0
    """Lead of the session's output over its guarantee when the round began, tokens / speed − time; below 0: it was
    behind."""
    acceptance: float | None = None
    """Acceptance rate α of this session, accepted / (accepted + first rejections); None: not measured yet."""
    accepted_share: float | None = None
    """Accepted / drafted tokens of this session; None: not measured yet."""
    work_s: float = 0.0
    """Verification time of this request and of those of its UE that waited when it arrived; 0: it has a guarantee."""
    turn_s: float = 0.0
    """Time from the arrival within which its UE's part of the time that guarantees leave suffices for `work_s`; 0: it
    has a guarantee, or no session has one. Each plan computes it anew."""
    ue: bytes = b""
    """UE that the session belongs to: with keys, all connections with its key."""
    peer: bytes = b""
    """Connection of the session, by which a controller names UEs."""
    at_once: bool = False
    """Whether it follows the round before it at once: the target decodes alone, or the window came ahead."""
    running_tokens: int = 0
    """`weight` of the other requests of this UE that the engine has not finished: prompts that it cuts."""

    @property
    def cached_tokens(self) -> int:
        """Leading tokens of the prefix expected in the cache, by the session's own history."""
        return min(self.computed, len(self.request.prefix) - 1)

    @property
    def new_tokens(self) -> int:
        """Tokens that the pass must compute, by the session's own history."""
        return max(1, len(self.request.prefix) - self.computed) + len(self.request.draft)

    @property
    def weight(self) -> int:
        """Tokens of the pass that count for its UE's share: new ones, and some of those that are read; at least
        `LEAST_WEIGHT`, since judging and answering take their time for a request of one token, too.
        """
        return max(LEAST_WEIGHT, self.new_tokens + self.cached_tokens // READ_PER_NEW)

    def ends(self, most: int) -> int:
        """End of a piece of at most `most` new tokens: a multiple of `PIECE` before the prefix's last token; 0: there
        is none.
        """
        cached = self.cached_tokens
        end = min(cached + most, len(self.request.prefix) - 1) // PIECE * PIECE
        return end if end > cached else 0

    def piece(self, end: int) -> Pending:
        """A pass over its first `end` tokens only, for the prefix cache; the request keeps waiting for the rest."""
        request = VerifyRequest(self.request.session, self.request.prefix[:end], _NOTHING)
        return replace(self, request=request)


@dataclass(slots=True)
class Round:
    """A round in progress."""

    number: int
    window: Window
    csi: Csi | None
    arrived_s: float
    queue_s: float = 0.0
    verify_s: float = 0.0
    judge_s: float = 0.0
    batch_size: int = 0
    others_drafted: int = 0
    """Drafted tokens of other requests in its pass."""
    result: VerifyResult | None = None
    choices: Choices | None = None
    """Tokens of coupled sampling that take long to choose; None: they are chosen, or the target's argmax."""
    asked_s: float | None = None
    """Time at which `NeedHidden` was sent; None: it was not."""
    waited_s: float = 0.0
    """Time between `NeedHidden` and `Hidden`."""
    draft_s: float = 0.0
    """Drafting time of this round, as the UE measured it."""
    network_s: float = 0.0
    """Time of the last round's messages on the link, as the UE measured it."""
    pending: Pending | None = None
    """The request that the scheduler sees."""
    target_bytes: int = 0
    """Size of the target's distributions or hidden states that decide about its drafted tokens; 0: none do."""
    pieces_s: float = 0.0
    """Time in passes that computed pieces of the prefix."""
    new: int = 0
    """Tokens computed in its passes, pieces of the prefix included."""
    cached: int = 0
    """Tokens of the prefix that the last pass found in the cache."""
    shared_s: float = 0.0
    """Part of its time at the BS that counts for other rounds of its stream."""
    base_len: int = 0
    threshold: float | None = None
    """θ by which it is judged; None: that of its session."""
    guess: int | None = None
    """Length and last token of the prefix that the window continues, if it came ahead. A round of a stream has the
    length alone; `guess` is None for it and for windows that did not come ahead."""
    draft: int | None = None
    """Number of the window that joined a stream in this round; None: none did."""
    at_once: bool = False
    """As `Pending.at_once`."""
    follows: bool = False
    followed: bool = False
    """Whether it was verified with the round before it, and with the one after it: a stream decoded ahead."""
    _candidates: tuple[VerifyResult, list[int]] | None = None

    @property
    def token_s(self) -> float:
        """Drafting time per token of a window, the guess before it included; 0 without drafted tokens."""
        drafted = len(self.window.ids)
        return self.draft_s / (drafted + (self.guess is not None)) if drafted else 0.0

    @property
    def size_bytes(self) -> int:
        """Size of its window, and of what decides about it."""
        return self.window.size_bytes + self.target_bytes

    @property
    def asking(self) -> bool:
        """Whether hidden states were requested and have not arrived."""
        return self.asked_s is not None and self.window.hidden is None

    @property
    def hidden_came(self) -> bool:
        """Whether hidden states came with the window."""
        return self.window.hidden is not None and self.asked_s is None

    def candidates(self) -> list[int]:
        """Positions that are checked and whose drafted token is not the target's argmax."""
        assert self.result is not None
        if self._candidates is None or self._candidates[0] is not self.result:
            ids = self.window.ids  # of a stream decoded ahead, none, although the target chose several tokens
            others = ids != self.result.argmax[: len(ids)]
            others[: self.window.unchecked] = False
            self._candidates = self.result, np.flatnonzero(others).tolist()
        return self._candidates[1]
