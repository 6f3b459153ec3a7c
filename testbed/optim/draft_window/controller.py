"""How many tokens to draft a round, as acceptance, load and link change.

The controller keeps running estimates of α, load and link, prices every window with them, and moves to the cheapest
once staying has cost more than moving. That is:

- hysteresis: a window within `hysteresis` of the best is good enough, and nothing accumulates against it;
- a switching cost: what is lost beyond that is added up, round by round, and a switch is made when the sum exceeds
  `switching_s`, as one buys what one has paid for in rent. A large loss switches within a round or two, a small one
  late, and noise that sometimes favours another window takes back what it gave.

So it settles: estimates come within 5 % of a step after 3 memories, and from then on a window that is 2·hysteresis
worse than the best, or more, loses at least hysteresis·(time of a round) each round and is left within
switching_s / that many rounds, and `every` more, since prices are looked at only so often (`settle_rounds`). And it
does not chatter: to go and come back, estimates must move far enough to turn a loss of `hysteresis` into a gain of as
much, and stay for both sums to fill.

Where k = 0 wins, nothing is learnt of α any more. So speculation is turned off only where it would lose with α a
standard error above its estimate too; and now and then a few rounds are drafted to see, at the price of `probe_share`
of the time at most, and only if they could win with α = 1.
"""

from __future__ import annotations

import math

from testbed.config import Config
from testbed.errors import BadInput
from testbed.optim.draft_window.cost import LinkCosts, Price, TokenCost, check_estimates, check_windows, committed

REMAINS = 0.05
"""Share of a step that estimates have not followed yet when they count as settled."""
PROBE_MEMORY = 32.0
"""The memory for α of rounds that probe: they are rare, and what they tell is soon old."""


class WindowConfig(Config, frozen=True):
    """How a controller behaves.

    Raises:
        BadInput: a value out of range.
    """

    max_window: int = 16
    least_window: int = 0
    """0: speculation may be turned off; 1: never."""
    alpha: float = 0.7
    """Assumed before anything is known."""
    prior_tokens: float = 8.0
    """Tokens that this assumption weighs as much as."""
    memory: float = 128.0
    """Rounds after which a round counts 1/e of what it did, for α."""
    load_memory: float = 32.0
    """The same for load and link."""
    hysteresis: float = 0.005
    """Loss that is good enough, as a share of the time of a token."""
    switching_s: float = 0.01
    """What changing the window costs."""
    every: int = 4
    """Rounds from one look at the prices to the next: they are most of the work."""
    probe_share: float = 0.005
    """Of the time, for rounds that see whether speculation would pay again."""
    probe_rounds: int = 8
    """Rounds of one probe, one after the other."""

    def __post_init__(self) -> None:
        check_windows(self.max_window, self.least_window)
        for name in ("memory", "load_memory", "every", "probe_rounds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 1):
                raise BadInput(f"{name} must be 1 round or more, not {value}")
        for name in ("alpha", "hysteresis", "probe_share"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise BadInput(f"{name} must lie in [0, 1], not {value}")
        for name in ("prior_tokens", "switching_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise BadInput(f"{name} must be finite and not negative, not {value}")


DEFAULT = WindowConfig()


class WindowController:
    """The window of one UE. Every so many updates take max_window + 1 prices; the same updates give the same windows.

    Raises:
        BadInput: a load or link time that is negative or not finite.
    """

    def __init__(
        self, cost: TokenCost, link: LinkCosts | None = None, load: float = 0.0, config: WindowConfig = DEFAULT
    ) -> None:
        self.cost, self.config = cost, config
        self.link = link or LinkCosts()
        """Running estimate."""
        self.load = load
        """Running estimate, in the unit of the cost."""
        check_estimates(config.alpha, load, self.link)
        self.switches = 0
        """Changes of the window so far, probes left out."""
        self._tried, self._accepted = config.prior_tokens, config.prior_tokens * config.alpha
        self._shared_alpha, self._shared_tokens = config.alpha, 0.0
        self._loads = self._links = 0
        self._lost_s = self._saved_s = 0.0
        self._probing = self._left = self._rounds = 0
        self._priced = self._prices()
        self._steady = self._best()

    @property
    def window(self) -> int:
        """K_max of the next round; 0: the BS decodes alone. Rules that stop drafting earlier act below it."""
        return self._probing or self._steady

    @property
    def alpha(self) -> float:
        """Running estimate: accepted tokens over those that the BS accepted or rejected first."""
        if self._weight <= 0:
            return self.config.alpha
        return (self._accepted + self._shared_tokens * self._shared_alpha) / self._weight

    @property
    def _weight(self) -> float:
        """Tokens that the estimate stands on."""
        return self._tried + self._shared_tokens

    def believe(self, alpha: float, tokens: float) -> None:
        """What others' drafts are worth: counts as so many tokens of one's own, which fade while nothing is drafted.

        Raises:
            BadInput: alpha outside [0, 1], or tokens negative or not finite.
        """
        check_estimates(alpha, self.load, self.link)
        if not (math.isfinite(tokens) and tokens >= 0):
            raise BadInput(f"tokens must be finite and not negative, not {tokens}")
        self._shared_alpha, self._shared_tokens = alpha, tokens

    def resume(self, load: float) -> None:
        """A response begins: what the load was at the last one is not looked back to, and prices are due.

        Raises:
            BadInput: a load that is negative or not finite.
        """
        check_estimates(0.0, load, self.link)
        self.load = load
        self._rounds = self.config.every

    @property
    def settle_rounds(self) -> int:
        """Rounds after a step in load or link until the window is within 2·hysteresis of the best, at the latest.

        At the time that a round takes now; without hysteresis there is no such bound, and the answer is that of the
        estimates alone.
        """
        memory = self.config.load_memory
        follow = math.ceil(math.log(REMAINS) / math.log1p(-1 / memory)) if memory > 1 else 1
        lost_s = self.config.hysteresis * self._now.time_s * committed(self._steady, self.alpha)
        left = math.ceil(self.config.switching_s / lost_s) if 0 < lost_s < math.inf else 1
        return follow + left + self.config.every - 1

    @property
    def due(self) -> bool:
        """Whether the next update looks at the prices."""
        return self._rounds + 1 >= self.config.every

    def update(self, drafted: int, accepted: int, load: float | None = None, link: LinkCosts | None = None) -> int:
        """Learn from one round, and give K_max for the next.

        `drafted` counts what was really drafted, which a stopping rule may have kept below the window; 0 is a round
        without speculation. `load` is the BS's hint, `link` what this round saw of the link; None: nothing new.

        Raises:
            BadInput: counts that do not fit, or as at construction; nothing is learnt then.
        """
        if not 0 <= accepted <= drafted:
            raise BadInput(f"accepted must lie in 0..{drafted}, the drafted tokens, not {accepted}")
        check_estimates(0.0, self.load if load is None else load, link or self.link)
        self._learn(drafted, accepted, load, link)
        self._rounds += 1
        if self._rounds >= self.config.every:
            self._priced = self._prices()
            self._decide(self._rounds)
            self._rounds = 0
        self._probe(drafted)
        return self.window

    @property
    def _now(self) -> Price:
        return self._priced[self._steady - self.config.least_window]

    def _prices(self, alpha: float | None = None) -> list[Price]:
        alpha = self.alpha if alpha is None else alpha
        windows = range(self.config.least_window, self.config.max_window + 1)
        return [self.cost.price(window, alpha, self.load, self.link) for window in windows]

    def _best(self) -> int:
        """The cheapest window; of equals the smallest."""
        return self.config.least_window + min(range(len(self._priced)), key=self._priced.__getitem__)

    def _learn(self, drafted: int, accepted: int, load: float | None, link: LinkCosts | None) -> None:
        """Running means over the memory, plain means until there is as much."""
        if drafted:
            keep = 1 - 1 / (self.config.memory if self._steady else min(PROBE_MEMORY, self.config.memory))
            self._tried = keep * self._tried + accepted + (accepted < drafted)
            self._accepted = keep * self._accepted + accepted
        elif self._shared_tokens:
            keep = 1 - 1 / self.config.memory
            self._tried, self._accepted = keep * self._tried, keep * self._accepted
        if load is not None:
            self._loads += 1
            self.load += (load - self.load) / min(self._loads, self.config.load_memory)
        if link is not None:
            self._links += 1
            rate = 1 / min(self._links, self.config.load_memory)
            self.link = LinkCosts(*(old + (new - old) * rate for old, new in zip(self.link, link, strict=True)))

    def _decide(self, rounds: int) -> None:
        """Add up what staying cost in the last rounds, and switch once it is more than switching."""
        best = self._best()
        if not math.isfinite(self._now.time_s):
            self._switch(best)  # saturated: every round makes it worse
            return
        if best == 0 and self._steady and self._may_pay():
            best = self._draftable()
        chosen = self._priced[best - self.config.least_window]
        loss = self._now.time_s - chosen.time_s - self.config.hysteresis * self._now.time_s
        self._lost_s = max(0.0, self._lost_s + rounds * loss * committed(self._steady, self.alpha))
        if self._lost_s > self.config.switching_s:
            self._switch(best)

    def _may_pay(self, optimism: float = 1.0) -> bool:
        """Whether speculation would win if α were that many standard errors above its estimate.

        What is turned off learns nothing any more, so it is not turned off on a guess.
        """
        alpha = self.alpha
        deviation = math.sqrt(max(alpha * (1 - alpha), 0.05) / max(self._weight, 1.0))
        return min(self._prices(min(1.0, alpha + optimism * deviation))[1:]) < self._priced[0]

    def _draftable(self) -> int:
        """The cheapest window with speculation, if it may be off."""
        return 1 + min(range(len(self._priced) - 1), key=self._priced[1:].__getitem__)

    def _switch(self, window: int) -> None:
        if window != self._steady:
            self._steady = window
            self.switches += 1
            self._lost_s = self._saved_s = 0.0

    def _probe(self, drafted: int) -> None:
        """While speculation is off, save up for some rounds that tell α."""
        if self._steady or not math.isfinite(self._now.time_s):
            self._probing = 0
            return
        if self._probing:
            self._left -= drafted > 0
            self._probing = self._probing if self._left > 0 else 0
            return
        self._saved_s += self.config.probe_share * self._now.time_s
        window = self._draftable()
        more_s = (self._priced[window].time_s - self._now.time_s) * committed(window, self.alpha)
        price_s = self.config.probe_rounds * max(more_s, 0.0) + 2 * self.config.switching_s
        if price_s <= self._saved_s and min(self._prices(1.0)[1:]) < self._now:
            self._probing, self._left, self._saved_s = window, self.config.probe_rounds, 0.0
