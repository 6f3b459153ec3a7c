"""Lookahead and draft window of a session's rounds: given, or chosen from measured times and acceptance."""

from __future__ import annotations

from testbed.errors import BadInput
from testbed.optim.draft_window.lookahead import Waits, gain, token_s
from testbed.protocols.messages import NO_HINT, Verdict
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.gain import ForgettingLine
from testbed.ue.windows.pass_load import PassLoad
from testbed.ue.windows.stream_choice import FadingMean

LEAST_GAIN = 1.02
"""Least expected speed-up for which windows ahead are worth their uplink and energy."""
WARM_ROUNDS = 2
"""Rounds that began after a verdict before the first choice; until then windows ahead are sent, which costs no time."""
WARM_WINDOWS = (8, 4)
"""Most tokens of windows in these rounds: of two lengths, which shows what a token adds to the round trip."""
CHOOSE_ROUNDS = 4
"""Number of rounds between two choices of the window."""
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192)
"""Windows that are compared, and the largest one allowed."""
KEEP, KEEP_ACCEPTANCE = 0.9, 0.98
"""Factors by which the weights of earlier rounds shrink with every new one: of times, and of the acceptance rate where
the window is chosen, which needs a more precise one."""
MOST_ALPHA = 0.98
"""Acceptance rates are taken to be no higher."""


class Lookahead:
    """Chooses lookahead and window of the rounds of a UE, by `optim.draft_window.lookahead`.

    Drafting times and round trips are averages over rounds that began after a verdict, the acceptance rate is one over
    all rounds. The round trip is a line over the number of drafted tokens, so that a slow uplink makes windows shorter,
    above all under FH, which sends hidden states. Under SH, a rejection adds a trip for hidden states. Where passes are
    crowded with drafted tokens of other UEs, too, it is chosen as if these drafted as this one does (`PassLoad`).

    Args:
        fixed: lookahead of all windows, 0 or 1; None: it is chosen.
        most: largest window, where the window is chosen as well; None: the window rule decides about it.
        able: whether windows can be sent ahead at all.
        hinted: whether to follow what verdicts hint; until then, `fixed` holds.

    Raises:
        BadInput: hints beside a choice of its own, or where no windows can be sent ahead.
    """

    def __init__(self, fixed: int | None, most: int | None = None, able: bool = True, hinted: bool = False) -> None:
        if hinted and (fixed is None or not able):
            raise BadInput("lookahead is hinted in place of a given one, and where windows can be sent ahead")
        self.hinted = hinted
        self.fixed = fixed if able or fixed is None else 0
        self._most, self._able = most if fixed is None else None, able
        self._keep = KEEP if self._most is None else KEEP_ACCEPTANCE
        self._ahead, self._window, self._rounds, self._since = int(able), 0, 0, 0
        self._drafted = self._draft_s = self._plain = self._pass_s = 0.0
        self._accepted = self._kept = self._rejected = 0.0
        self._trips, self._load = _Trips(), PassLoad()

    @property
    def chooses(self) -> bool:
        """Whether lookahead or window are chosen."""
        return self.fixed is None

    def follow(self, verdict: Verdict) -> None:
        """Take the hint of a verdict; one that was not asked for changes nothing."""
        if self.hinted and verdict.lookahead != NO_HINT:
            self.fixed = verdict.lookahead

    def room(self, room: int) -> int:
        """Most tokens of the next window, for an output of `room` further tokens."""
        if self._most is None:
            return room
        if not self._window:
            return min(room, self._most, WARM_WINDOWS[self._rounds % len(WARM_WINDOWS)])
        return min(room, self._window)

    def now(self, window: int) -> int:
        """0 or 1, for a window of this length that is about to be sent."""
        if self.fixed is not None:
            return self.fixed
        if not window or not self._able:
            return 0
        if self._rounds < WARM_ROUNDS or not self._drafted:
            return 1
        if self._most is not None:
            return self._ahead
        return int(gain(window, self._alpha, self._waits(), self._guess) >= LEAST_GAIN)

    def observe(self, record: RoundRecord) -> None:
        """Learn from a round with drafted tokens; first rounds are left out, since they include the prompt."""
        if self.fixed is not None or not record.drafted or record.round == 0:
            return
        self._accepted = self._keep * self._accepted + record.accepted
        self._kept = self._keep * self._kept + min(record.kept, record.accepted)
        self._rejected = self._keep * self._rejected + (record.accepted < record.drafted)
        if not record.hidden_s:
            self._observe_times(record)
        self._since += 1
        if self._most is not None and self._rounds >= WARM_ROUNDS and self._since >= CHOOSE_ROUNDS:
            self._choose(self._most)

    def _observe_times(self, record: RoundRecord) -> None:
        self._rounds += 1
        pass_s = max(0.0, record.verify_s + record.judge_s)
        self._plain = KEEP * self._plain + 1
        self._drafted = KEEP * self._drafted + record.drafted
        self._draft_s = KEEP * self._draft_s + max(0.0, record.draft_s)
        self._pass_s = KEEP * self._pass_s + pass_s
        self._load.add(record.drafted, record.others_drafted, pass_s)
        self._trips.add(record.drafted, record.link_s + record.queue_s + pass_s, record.queried > 0)

    # ------------------------------------------------------------ choice

    @property
    def _alpha(self) -> float:
        judged = self._accepted + self._rejected
        return min(MOST_ALPHA, self._accepted / judged) if judged else 0.0

    @property
    def _guess(self) -> float:
        """Probability that the guess of the target's next token is right: no judge accepts another one."""
        judged = self._accepted + self._rejected
        return min(MOST_ALPHA, (self._accepted - self._kept) / judged) if judged else 0.0

    def _waits(self, window: int | None = None) -> Waits:
        """Times at a window; None: at the mean one."""
        mean = self._drafted / self._plain
        trip_s = self._trips.line.at(mean)
        if window is not None:
            others_s = self._load.others_s if self._load.crowded else 0.0
            trip_s += (max(0.0, self._trips.line.slope) + others_s) * (window - mean)
        pass_s = self._pass_s / self._plain
        return Waits(self._draft_s / self._drafted, max(trip_s, pass_s), pass_s, self._trips.rejection_s)

    def _choose(self, most: int) -> None:
        sizes = [size for size in SIZES if size < most] + [most]
        costs_s = {
            (ahead, size): token_s(size, self._alpha, self._waits(size), ahead, self._guess)
            for ahead in range(self._able + 1)
            for size in sizes
        }
        plain = min((one for one in costs_s if not one[0]), key=lambda one: costs_s[one])
        best = min(costs_s, key=lambda one: costs_s[one])
        self._ahead, self._window = plain if costs_s[plain] < LEAST_GAIN * costs_s[best] else best
        self._since = 0


class _Trips:
    """Round trips [s]: a line over drafted tokens, and what the question for hidden states after a rejection adds."""

    def __init__(self) -> None:
        self.line, self._more_s, self._unasked = ForgettingLine(1 / (1 - KEEP)), FadingMean(KEEP), False

    def add(self, drafted: int, seconds: float, asked: bool) -> None:
        """Learn from a round; until one had no question, those with one make up the line."""
        if asked and self._unasked:
            self._more_s.add(seconds - self.line.at(drafted))
            return
        if not asked and not self._unasked:
            self.line, self._unasked = ForgettingLine(1 / (1 - KEEP)), True
        self.line.add(drafted, seconds)

    @property
    def rejection_s(self) -> float:
        """What a question adds; 0 where there was none."""
        return max(0.0, self._more_s.value)


def lookahead_of(asked: int | str | None, able: bool, policy: WindowPolicy) -> Lookahead:
    """The lookahead of a session without streams.

    Args:
        asked: 0, 1, stream, which is 1 here, or None: it is chosen, and of a fixed window rule the window, too.
        able: whether its windows can be sent ahead.
    """
    fixed = 1 if isinstance(asked, str) else asked
    return Lookahead(fixed, policy.max_window if isinstance(policy, FixedWindow) else None, able)
