"""When to stop drafting: after K tokens, at the first token that the verifier will probably reject, or where one more
is not worth its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from testbed.errors import BadInput
from testbed.ue.drafters.base import DraftToken
from testbed.ue.records import RoundRecord
from testbed.ue.windows.predictor import RejectionPredictor

MAX_WINDOW = 256
FIXED, PREDICTED, GAIN = "fixed", "predicted", "gain"
HINTED = "hinted"
RULES = (FIXED, PREDICTED, GAIN, HINTED, f"{HINTED}-{PREDICTED}", f"{HINTED}-{GAIN}")
"""Names of the policies below; the last two stop by the rule after the dash, below what the BS hints."""
WARM_ROUNDS = 8
"""Rounds that `ExpectedGain` watches before it goes by what it has measured."""
MEMORY_ROUNDS = 200
"""A round weighs 1/e as much after so many more."""


class WindowPolicy(Protocol):
    """Asked after every drafted token of a round, and told of the round after it."""

    @property
    def max_window(self) -> int:
        """No round drafts more."""

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """Whether to draft another token after `drafted` (at least one)."""

    def observe(self, record: RoundRecord) -> None:
        """A round ended."""

    def fresh(self) -> WindowPolicy:
        """The same policy, with nothing learnt."""


def check_window(window: int) -> None:
    """Refuse a largest window.

    Raises:
        BadInput: outside 1..MAX_WINDOW.
    """
    if not 1 <= window <= MAX_WINDOW:
        raise BadInput(f"window must lie in 1..{MAX_WINDOW}, not {window}")


@dataclass(frozen=True)
class FixedWindow:
    """K tokens a round.

    Raises:
        BadInput: K outside 1..MAX_WINDOW.
    """

    max_window: int

    def __post_init__(self) -> None:
        check_window(self.max_window)

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """Until K are there."""
        return len(drafted) < self.max_window

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt."""

    def fresh(self) -> FixedWindow:
        """Itself."""
        return self


@dataclass(frozen=True)
class PredictedWindow:
    """Until the first predicted rejection, K_max tokens at most (WISP, Section 4.1).

    The doubted token is sent as the window's last. WISP's eq. 25 leaves it out; but its drafting is paid for by then
    (its own logits are what is doubted), another position costs the verifier next to nothing, and where the predictor
    is wrong the token, and the bonus after it, are won. So a window has one token at least.

    Raises:
        BadInput: K_max outside 1..MAX_WINDOW, or a threshold outside [0, 1].
    """

    predictor: RejectionPredictor
    threshold: float
    """Predicted accepted: an acceptance probability of at least this."""
    max_window: int

    def __post_init__(self) -> None:
        check_window(self.max_window)
        if not 0 <= self.threshold <= 1:
            raise BadInput(f"the predictor's threshold must lie in [0, 1], not {self.threshold:g}")

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """While the newest token is predicted accepted."""
        if len(drafted) >= self.max_window:
            return False
        return self.predictor.accept_probability(drafted[-1], len(drafted)) >= self.threshold

    def observe(self, record: RoundRecord) -> None:
        """Nothing is learnt."""

    def fresh(self) -> PredictedWindow:
        """Itself."""
        return self


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
    """Until one more token is not worth its time; beyond the paper.

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
    they hold its prompt. Until `WARM_ROUNDS` were seen, it drafts on while all so far are more likely kept than not.

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
        """No round drafts more."""
        return self._max_window

    @property
    def rate_tps(self) -> float:
        """ρ: tokens committed a second over past rounds; 0 before there are any."""
        return self._tokens / self._seconds if self._seconds > 0.0 else 0.0

    @property
    def token_s(self) -> float:
        """What another token adds to a round: drafting it, and the rest's share, which is never below 0."""
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
        """Learn what a round took and brought."""
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


class Hinted:
    """As many tokens as the BS hints, and within them as another rule has it.

    Args:
        rule: its largest window stays the limit, and is taken until there is a hint.
    """

    def __init__(self, rule: WindowPolicy) -> None:
        self._rule = rule
        self.limit = self._window = rule.max_window

    @property
    def off(self) -> bool:
        """Whether speculation does not pay at the moment: the BS is to decode alone."""
        return self._window == 0

    @property
    def max_window(self) -> int:
        """No round drafts more; one token where a round begins although speculation is off."""
        return max(1, self._window)

    def hinted(self, window: int) -> None:
        """The BS hints a window."""
        self._window = min(window, self.limit)

    def keep_drafting(self, drafted: Sequence[DraftToken]) -> bool:
        """Until there are as many as hinted, or the rule stops."""
        return len(drafted) < self.max_window and self._rule.keep_drafting(drafted)

    def observe(self, record: RoundRecord) -> None:
        """The rule learns from what was drafted."""
        if record.drafted:
            self._rule.observe(record)

    def fresh(self) -> Hinted:
        """The same rule, with nothing learnt or hinted."""
        return Hinted(self._rule.fresh())


def needs_predictor(rule: str) -> bool:
    """Whether a rule by name goes by a rejection predictor."""
    return rule not in (FIXED, HINTED)


def window_policy(rule: str, max_window: int, predictor: RejectionPredictor | None = None) -> WindowPolicy:
    """A policy by name; a predicted window takes the predictor's own threshold.

    Raises:
        BadInput: an unknown rule, a window out of bounds, or no predictor where one is needed.
    """
    check_rule(rule)
    if rule.startswith(HINTED):
        below = FIXED if rule == HINTED else rule.removeprefix(f"{HINTED}-")
        return Hinted(window_policy(below, max_window, predictor))
    if rule == FIXED:
        return FixedWindow(max_window)
    if predictor is None:
        raise BadInput(f"window rule {rule} needs a predictor: give --predictor DIR")
    if rule == PREDICTED:
        return PredictedWindow(predictor, predictor.info.threshold, max_window)
    return ExpectedGain(predictor, max_window)


def check_rule(rule: str) -> None:
    """Refuse an unknown window rule.

    Raises:
        BadInput: unknown; the message lists the known ones.
    """
    if rule not in RULES:
        raise BadInput(f"unknown window rule {rule!r}; known: {', '.join(RULES)}")
