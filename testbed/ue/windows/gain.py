"""Windows by expected gain: draft while one more token is worth its time. Beyond the papers."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.ue.drafters.base import DraftToken
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import WindowPolicy, WindowRule, check_window
from testbed.ue.windows.predictor import RejectionPredictor

WARM_ROUNDS = 8
"""Rounds that `ExpectedGain` observes before it uses what it has measured."""
MEMORY_ROUNDS = 200
"""Number of rounds after which a round's weight has fallen to 1/e."""


class ForgettingLine:
    """Least squares of y on x, old points forgotten exponentially."""

    def __init__(self, memory: float) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        """A point; means and centred second moments are updated in place (West, 1979)."""
        self._weight = self._keep * self._weight + 1.0
        dx, dy = x - self._x, y - self._y
        self._x += dx / self._weight
        self._y += dy / self._weight
        self._xx = self._keep * self._xx + dx * (x - self._x)
        self._xy = self._keep * self._xy + dx * (y - self._y)

    @property
    def slope(self) -> float:
        """0 where x never changed."""
        return self._xy / self._xx if self._xx > 0.0 else 0.0

    def at(self, x: float) -> float:
        """The line's y."""
        return self._y + self.slope * (x - self._x)


class ExpectedGain:
    """Draft while one more token is worth its time.

    A run is a renewal process: every round commits its accepted tokens and one more, and takes its time; tokens a
    second are the ratio of the means, and the greatest ratio ρ is had by stopping as soon as one more token commits
    less than ρ times the time that it takes. After n tokens with acceptance probabilities p_1 … p_n another one is
    drafted iff

        p_1 ⋯ p_n · E[p_(n+1) | p_n]  >  ρ · (draft time of a token + what a longer window adds to the rest of a round).

    Everything on the right is measured from past rounds: ρ as tokens committed over time taken (which, fed back,
    converges to the greatest ratio as Dinkelbach's iteration does), drafting from `draft_s`, the rest as the slope of
    link, verification and software over the tokens drafted; not of the queue, where an SLO-aware scheduler lets longer
    windows wait longer because they are due later. A longer round trip or a busier verifier lowers ρ, and windows grow;
    a verifier that works token by token, or a slow uplink, raises the slope, and they shrink. What a token costs other
    UEs is not counted. E[p_(n+1) | p_n] is a line through the pairs seen. First rounds of a request are left out, since
    they hold its prompt. In the first `WARM_ROUNDS` it drafts on while all tokens so far are more likely kept than not.

    Args:
        predictor: its probabilities are taken as they are, calibrated; no threshold is used.

    Raises:
        BadInput: `max_window` outside 1..MAX_WINDOW.
    """

    def __init__(self, predictor: RejectionPredictor, max_window: int) -> None:
        check_window(max_window)
        self._predictor, self._max_window = predictor, max_window
        self._next = ForgettingLine(MEMORY_ROUNDS * 4)
        self._rest = ForgettingLine(MEMORY_ROUNDS)
        self._keep = 1.0 - 1.0 / MEMORY_ROUNDS
        self._rounds = 0
        self._tokens = self._seconds = self._drafted = self._draft_s = 0.0
        self._all_kept = self._last = 1.0

    @property
    def max_window(self) -> int:
        """Most tokens of a round."""
        return self._max_window

    @property
    def rate_tps(self) -> float:
        """ρ: tokens committed a second over past rounds; 0 before there are any."""
        return self._tokens / self._seconds if self._seconds > 0.0 else 0.0

    @property
    def token_s(self) -> float:
        """Seconds that another token adds to a round: drafting it, and the rest's slope where that is positive."""
        drafting_s = self._draft_s / self._drafted if self._drafted > 0.0 else 0.0
        return drafting_s + max(0.0, self._rest.slope)

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """While the expected gain is greater than its cost."""
        if len(drafted) >= self._max_window:
            return False
        p = self._predictor.accept_probability(drafted[-1], len(drafted))
        if len(drafted) == 1:
            self._all_kept = 1.0
        else:
            self._next.add(self._last, p)
        self._all_kept *= p
        self._last = p
        if self._rounds < WARM_ROUNDS:
            return self._all_kept > 0.5
        gain = self._all_kept * min(1.0, max(0.0, self._next.at(p)))
        return gain > self.rate_tps * self.token_s

    def observe(self, record: RoundRecord) -> None:
        """Learn from a round's time and committed tokens."""
        if record.round == 0 or not record.drafted:
            return
        rest_s = record.link_s + record.queue_s + record.verify_s + record.judge_s + record.overhead_s
        self._rounds += 1
        self._rest.add(record.drafted, rest_s - record.queue_s)
        self._tokens = self._keep * self._tokens + record.committed
        self._seconds = self._keep * self._seconds + record.draft_s + rest_s
        self._drafted = self._keep * self._drafted + record.drafted
        self._draft_s = self._keep * self._draft_s + record.draft_s

    def fresh(self) -> ExpectedGain:
        """The same rule, with nothing learnt."""
        return ExpectedGain(self._predictor, self._max_window)


def _gain(max_window: int, predictor: RejectionPredictor | None) -> WindowPolicy:
    assert predictor is not None
    return ExpectedGain(predictor, max_window)


GAIN = WindowRule("gain", "while one more token is worth its time", _gain, predictor=True)
