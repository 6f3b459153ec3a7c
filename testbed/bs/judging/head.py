"""Judges that ask the decision head (WISV Section V): by θ of the request, by the head's own θ, by a quality budget."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.bs.judging.base import Candidates
from testbed.channel.csi import FEATURES, PERFECT, Csi
from testbed.decision_head.head import DecisionHead, check_fits
from testbed.errors import BadInput
from testbed.protocols.quantise import FULL_BITS

ACCEPTS_ALL = 1 - 1e-6
"""A larger θ keeps every drafted token, whatever the head says."""
ACCOUNTS = 2**16
"""Responses that a budget is kept for; of more, those longest unheard of start anew."""


class HeadJudge:
    """Rejects a mismatch where p_rej ≥ θ (WISV eq. 27, errata); θ is the request's."""

    def __init__(self, head: DecisionHead) -> None:
        self.head = head
        self._columns = [FEATURES.index(name) for name in head.info.features]

    def check(self, drafter: str, hidden_size: int, hidden_bits: int = FULL_BITS) -> None:
        """Drafter and quantisation must be those that the head was trained with."""
        check_fits(self.head.info, drafter_fingerprint=drafter, drafter_hidden=hidden_size, hidden_bits=hidden_bits)

    def needs_hidden(self, threshold: float) -> bool:
        """Where θ alone does not decide."""
        return 0 < threshold <= ACCEPTS_ALL

    def threshold(self, window: Candidates) -> float:
        """θ of a window."""
        return window.threshold

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """All windows' positions in one evaluation of the head."""
        thresholds = [self.threshold(window) for window in batch]
        asked = [w for w, t in zip(batch, thresholds, strict=True) if 0 < t <= ACCEPTS_ALL]
        found = iter(self.probabilities(asked, [w.csi or PERFECT for w in asked]))
        kept = []
        for window, threshold in zip(batch, thresholds, strict=True):
            if 0 < threshold <= ACCEPTS_ALL:
                kept.append(next(found) < threshold)
            else:
                kept.append(np.full(len(window.draft_ids), threshold > ACCEPTS_ALL))
        return kept

    def probabilities(self, batch: Sequence[Candidates], states: Sequence[Csi]) -> list[NDArray[np.float32]]:
        """p_rej [m] of each window under these channel states, one matrix product for all."""
        if not batch:
            return []
        ends = list(itertools.accumulate(len(w.draft_ids) for w in batch))
        rows = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        drafter = np.concatenate([w.drafter_hidden for w in batch])
        target = np.concatenate([_target_hidden(w) for w in batch])
        seen = np.empty((ends[-1], len(self._columns)), np.float32)
        if self._columns:
            for mine, state in zip(rows, states, strict=True):
                seen[mine] = state.features[self._columns]
        p = self.head.reject_probability(drafter, target, seen)
        return [p[mine] for mine in rows]


class TableJudge(HeadJudge):
    """Rejects where p_rej ≥ θ(q), the threshold that the head itself names for the channel's quality q.

    A θ of 0 in the request stays strict; any other one only asks for being judged.
    """

    def needs_hidden(self, threshold: float) -> bool:
        """Where anything is judged."""
        return threshold > 0

    def threshold(self, window: Candidates) -> float:
        """θ(q) of the round's channel state."""
        if window.threshold <= 0:
            return 0.0
        return self.head.threshold((window.csi or PERFECT).quality)


class BudgetJudge(HeadJudge):
    """Keeps mismatches as long as the response stays within a budget of risk.

    With calibrated probabilities p_i that the i-th kept mismatch changes the answer, the answer is changed with a
    probability of 1 − Π(1 − p_i) if they fail independently; it must stay at most `share`. So every response has
    −ln(1 − share) to spend, a kept mismatch costs −ln(1 − p), and what is left after the window's earlier ones sets θ
    for the next: θ = 1 − exp(−left), or the request's θ where that is less. The probabilities are those of a perfect
    channel, on which relabelling leaves the labels as the task made them: a poor link makes no answer less changed.

    Args:
        share: largest share of answers that may change, in (0, 1).

    Raises:
        BadInput: a share outside.
    """

    def __init__(self, head: DecisionHead, share: float) -> None:
        super().__init__(head)
        if not 0 < share < 1:
            raise BadInput(f"the quality budget is a share of answers in (0, 1), such as 0.01, not {share}")
        self._whole = -math.log1p(-share)
        self._left: OrderedDict[Hashable, float] = OrderedDict()

    def needs_hidden(self, threshold: float) -> bool:
        """Where anything is judged."""
        return threshold > 0

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """All windows' positions in one evaluation of the head, then spent one after another."""
        asked = [window for window in batch if window.threshold > 0]
        found = iter(self.probabilities(asked, [PERFECT] * len(asked)))
        return [self._spend(w, next(found)) if w.threshold > 0 else np.zeros(len(w.draft_ids), np.bool_) for w in batch]

    def left(self, session: Hashable) -> float:
        """What a response may still spend."""
        return self._left.get(session, self._whole)

    def _spend(self, window: Candidates, p: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Keep from the front while it fits: what follows the first rejection is lost anyway, and costs nothing."""
        kept = np.zeros(len(p), np.bool_)
        left = self.left(window.session)
        for i, risk in enumerate(p.tolist()):
            if risk >= window.threshold or risk >= 1 or left + math.log1p(-risk) < 0:
                break
            kept[i] = True
            left += math.log1p(-risk)
        self._left[window.session] = left
        self._left.move_to_end(window.session)
        if len(self._left) > ACCOUNTS:
            self._left.popitem(last=False)
        return kept


def _target_hidden(window: Candidates) -> NDArray[np.float32]:
    assert window.target_hidden is not None
    return window.target_hidden
