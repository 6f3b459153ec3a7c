"""Windows that take as long to draft as a verdict takes to arrive, as in parallel speculative decoding (PEARL)."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.ue.drafters.base import DraftToken
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import WindowPolicy, WindowRule, check_window
from testbed.ue.windows.predictor import RejectionPredictor

MEMORY_ROUNDS = 20
"""Number of rounds after which a round's weight has fallen to 1/e."""


class ParallelWindow:
    """K = wait / drafting time of a token, so that with `--lookahead 1` neither side waits for the other (PEARL, arXiv
    2408.11850, whose pre-verification of the first token is left out: the adaptive length is what remains).

    The wait is that from sending a window to its verdict. Rounds that were drafted ahead, and first rounds of a
    request, which hold its prompt, tell nothing about drafting times.

    Raises:
        BadInput: K_max outside 1..MAX_WINDOW.
    """

    def __init__(self, limit: int) -> None:
        check_window(limit)
        self._limit = limit
        self._token_s = self._wait_s = 0.0

    @property
    def max_window(self) -> int:
        """Most tokens of a round, K_max until times are known."""
        if self._token_s <= 0:
            return self._limit
        return max(1, min(self._limit, round(self._wait_s / self._token_s)))

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """Up to K tokens."""
        return len(drafted) < self.max_window

    def observe(self, record: RoundRecord) -> None:
        """Learn from a round's times."""
        if record.drafted and record.sent_s is not None and record.verdict_s is not None:
            self._wait_s = _mean(self._wait_s, record.verdict_s - record.sent_s)
        if record.drafted and record.round and not record.hidden_s:
            self._token_s = _mean(self._token_s, record.draft_s / record.drafted)

    def fresh(self) -> ParallelWindow:
        """The same rule, with nothing learnt."""
        return ParallelWindow(self._limit)


def _mean(mean: float, value: float) -> float:
    return mean + (value - mean) / MEMORY_ROUNDS if mean else value


def _parallel(max_window: int, predictor: RejectionPredictor | None) -> WindowPolicy:
    return ParallelWindow(max_window)


PARALLEL = WindowRule("parallel", "as many tokens as are drafted while a verdict is on its way", _parallel)
