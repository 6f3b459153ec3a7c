"""Lookahead of a session: given, or chosen for each window from measured times and acceptance."""

from __future__ import annotations

from testbed.optim.draft_window.lookahead import Waits, gain
from testbed.ue.records import RoundRecord

LEAST_GAIN = 1.02
"""Expected speed-up below which windows ahead are not worth their uplink and energy."""
WARM_ROUNDS = 2
"""Rounds that began after a verdict before the first choice; until then it is 1, which costs no time."""
KEEP = 0.9
"""Weight of earlier rounds in the averages, per round."""


class Lookahead:
    """The lookahead of each window of a session.

    Args:
        fixed: 0 or 1; None: chosen by `optim.draft_window.lookahead.gain`. Drafting time and round trip are averages
            over rounds that began after a verdict, the acceptance rate one over all rounds.
    """

    def __init__(self, fixed: int | None) -> None:
        self.fixed = fixed
        self._rounds = 0
        self._drafted = self._draft_s = self._plain = self._trip_s = self._pass_s = 0.0
        self._accepted = self._rejected = 0.0

    def now(self, window: int) -> int:
        """0 or 1, for a window of this length that is about to be sent."""
        if self.fixed is not None:
            return self.fixed
        if not window:
            return 0
        if self._rounds < WARM_ROUNDS or not self._drafted:
            return 1
        judged = self._accepted + self._rejected
        trip_s = self._trip_s / self._plain
        waits = Waits(self._draft_s / self._drafted, trip_s, min(trip_s, self._pass_s / self._plain))
        return int(gain(window, self._accepted / judged if judged else 0.0, waits) >= LEAST_GAIN)

    def observe(self, record: RoundRecord) -> None:
        """Learn from a round with drafted tokens; the first one has the prompt in it."""
        if self.fixed is not None or not record.drafted or record.round == 0:
            return
        self._accepted = KEEP * self._accepted + record.accepted
        self._rejected = KEEP * self._rejected + (record.accepted < record.drafted)
        if record.hidden_s:
            return
        self._rounds += 1
        pass_s = record.verify_s + record.judge_s
        self._plain = KEEP * self._plain + 1
        self._drafted = KEEP * self._drafted + record.drafted
        self._draft_s = KEEP * self._draft_s + record.draft_s
        self._trip_s = KEEP * self._trip_s + record.link_s + record.queue_s + pass_s
        self._pass_s = KEEP * self._pass_s + pass_s
