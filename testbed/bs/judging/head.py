"""Judges with a decision head (WISV Section V): by the request's θ, by the head's own θ, or by a quality budget."""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.bs.judging.base import Candidates
from testbed.channel.csi import FEATURES, PERFECT, Csi, quality
from testbed.decision_head.head import DecisionHead, check_fits
from testbed.errors import BadInput
from testbed.protocols.messages import Reading
from testbed.protocols.quantise import FULL_BITS

ACCEPTS_ALL = 1 - 1e-6
"""A larger θ keeps every drafted token without asking the head."""
ACCOUNTS = 2**16
"""Responses whose risk is remembered for its verdict."""


class HeadJudge:
    """Rejects a mismatch where p_rej ≥ θ (WISV eq. 27, errata); θ is the request's."""

    def __init__(self, head: DecisionHead) -> None:
        self.head = head
        self._columns = [FEATURES.index(name) for name in head.info.features]

    def check(
        self, drafter: str, hidden_size: int, hidden_bits: int = FULL_BITS, states: Reading = "predicting"
    ) -> None:
        """Check that drafter, quantisation and states are those that the head was trained with.

        Raises:
            BadInput: they are not.
        """
        check_fits(
            self.head.info, drafter_fingerprint=drafter, drafter_hidden=hidden_size, hidden_bits=hidden_bits,
            states=states,
        )  # fmt: skip

    def needs_hidden(self, threshold: float) -> bool:
        """Whether θ leaves the decision to the head."""
        return 0 < threshold <= ACCEPTS_ALL

    def threshold(self, window: Candidates) -> float:
        """θ of a window."""
        return window.threshold

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """Judge the positions of all windows in one evaluation of the head."""
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
        """p_rej [m] of each window under these channel states, in one evaluation of the head."""
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
    """Rejects where p_rej ≥ θ(q), the head's own threshold for channel quality q.

    A request with θ = 0 is strict; any other θ means θ(q).
    """

    def needs_hidden(self, threshold: float) -> bool:
        """Whether anything is judged."""
        return threshold > 0

    def threshold(self, window: Candidates) -> float:
        """θ(q) at the round's channel state."""
        if window.threshold <= 0:
            return 0.0
        return self.head.threshold(quality(window.csi or PERFECT, self.head.info.quality))


class BudgetJudge(HeadJudge):
    """Keeps mismatches as long as the response stays within a risk budget.

    With calibrated probabilities p_i that the i-th kept mismatch changes the answer, and independence, the answer
    changes with probability 1 − Π(1 − p_i), which must be at most `share`. Every response has a budget of
    −ln(1 − share), a kept mismatch costs −ln(1 − p), and the remainder sets θ for the next candidate:
    θ = 1 − exp(−remainder), or the request's θ if that is smaller. The probabilities are those of a perfect channel,
    for which relabelling leaves the task's labels unchanged: whether an answer changes does not depend on the link.
    What a response has spent goes along with it (`Verdict.risk`, `Open.risk`), so that a base station that takes over
    continues its budget.

    Args:
        share: largest share of answers that may change, in (0, 1).

    Raises:
        BadInput: `share` is out of range.
    """

    def __init__(self, head: DecisionHead, share: float) -> None:
        super().__init__(head)
        if not 0 < share < 1:
            raise BadInput(f"the quality budget is a share of answers in (0, 1), such as 0.01, not {share}")
        self._whole = -math.log1p(-share)
        self._spent: OrderedDict[Hashable, float] = OrderedDict()
        self._spending = threading.Lock()
        """Rounds that take long are judged in a thread, others meanwhile in the event loop."""

    def needs_hidden(self, threshold: float) -> bool:
        """Whether anything is judged."""
        return threshold > 0

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        """Evaluate the head once for all windows, then spend each response's budget in order."""
        asked = [window for window in batch if window.threshold > 0]
        found = iter(self.probabilities(asked, [PERFECT] * len(asked)))
        return [self._spend(w, next(found)) if w.threshold > 0 else np.zeros(len(w.draft_ids), np.bool_) for w in batch]

    def risk(self, session: Hashable) -> float:
        """See `RiskJudge`."""
        return self._spent.get(session, 0.0)

    def _spend(self, window: Candidates, p: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Keep candidates from the front while the budget lasts; those after the first rejection cost nothing."""
        kept = np.zeros(len(p), np.bool_)
        left = self._whole - window.risk
        for i, risk in enumerate(p.tolist()):
            if not (risk < window.threshold and risk < 1) or left + math.log1p(-risk) < 0:  # also one that is no number
                break
            kept[i] = True
            left += math.log1p(-risk)
        with self._spending:
            self._spent[window.session] = self._whole - left
            self._spent.move_to_end(window.session)
            if len(self._spent) > ACCOUNTS:
                self._spent.popitem(last=False)
        return kept


def _target_hidden(window: Candidates) -> NDArray[np.float32]:
    assert window.target_hidden is not None
    return window.target_hidden
