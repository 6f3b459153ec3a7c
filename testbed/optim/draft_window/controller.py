"""Draft-window controller: adapts the window to acceptance rate, load and link.

The controller keeps running estimates of α, load and link, prices the windows with them (of large ones, a part: see
`cost.compared`), and switches to the cheapest when staying has cost more than switching:

- Hysteresis: no loss accumulates while the window is within `hysteresis` of the best.
- Switching cost: losses beyond that are summed over rounds, and the window changes when the sum exceeds `switching_s`
  (the ski-rental rule). Large losses switch within a round or two, small ones late, and noise cancels in the sum.

It settles: 3 memories after a step, estimates are within 5 % of it. From then on, a window worse than the best by
2·hysteresis or more loses at least hysteresis·(time of a round) per round. It is left within switching_s / that many
rounds, plus `every`, the interval between updates of the prices (`settle_rounds`). It does not oscillate: to switch
back, estimates must turn a loss of `hysteresis` into an equal gain and stay there until the sum exceeds `switching_s`.

With k = 0, α is no longer observed. Speculation is therefore turned off only if it would also lose with α one standard
error above its estimate. While off, a few rounds are drafted as probes, which take at most `probe_share` of the time,
and only if speculation could win with α = 1.
"""

from __future__ import annotations

import math
from typing import Annotated

from testbed.errors import BadInput
from testbed.optim.draft_window.cost import (
    LinkCosts,
    Price,
    TokenCost,
    check_estimates,
    check_windows,
    committed,
    compared,
)
from testbed.options import Config, option

REMAINS = 0.05
"""Remaining share of a step at which estimates count as settled."""
PROBE_MEMORY = 32.0
"""Memory for α of probing rounds, shorter because probes are rare and soon outdated."""


class WindowConfig(Config, frozen=True):
    """Parameters of a window controller.

    Raises:
        BadInput: a value out of range.
    """

    max_window: int = 16
    least_window: int = 0
    """0: speculation may be turned off; 1: it always stays on."""
    alpha: Annotated[float, option("Initial estimate of the acceptance rate.", least=0, most=1)] = 0.7
    prior_tokens: Annotated[float, option("Weight of the initial estimate, in tokens.", least=0)] = 8.0
    memory: Annotated[float, option("Time constant of the estimate of α, in rounds.", least=1)] = 128.0
    load_memory: Annotated[float, option("Time constant of the estimates of load and link, in rounds.", least=1)] = 32.0
    hysteresis: Annotated[float, option("Tolerated loss, relative to the time per token.", least=0, most=1)] = 0.005
    switching_s: Annotated[float, option("Cost of changing the window.", least=0, unit="s")] = 0.01
    every: Annotated[int, option("Rounds between updates of the prices, which are most of the work.", least=1)] = 4
    probe_share: Annotated[
        float, option("Maximum share of the time spent on probes while speculation is off.", least=0, most=1)
    ] = 0.005
    probe_rounds: Annotated[int, option("Consecutive rounds of a probe.", least=1)] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_windows(self.max_window, self.least_window)


DEFAULT = WindowConfig()


class WindowController:
    """Window controller of one UE. Deterministic; every `every` updates it computes up to 46 prices.

    Raises:
        BadInput: a load or link time that is negative or not finite.
    """

    def __init__(
        self, cost: TokenCost, link: LinkCosts | None = None, load: float = 0.0, config: WindowConfig = DEFAULT
    ) -> None:
        self.cost, self.config = cost, config
        self.link = link or LinkCosts()
        """Running estimate of the link times."""
        self.load = load
        """Running estimate of the load, in the unit of the cost model."""
        check_estimates(config.alpha, load, self.link)
        self.switches = 0
        """Changes of the window so far, without probes."""
        self._tried, self._accepted = config.prior_tokens, config.prior_tokens * config.alpha
        self._shared_alpha, self._shared_tokens = config.alpha, 0.0
        self._loads = self._links = 0
        self._lost_s = self._saved_s = 0.0
        self._probing = self._left = self._rounds = 0
        self._windows = compared(config.max_window, config.least_window)
        self._priced = self._prices()
        self._steady = self._best()

    @property
    def window(self) -> int:
        """K_max of the next round; 0: the BS decodes alone. Window rules may stop drafting earlier."""
        return self._probing or self._steady

    @property
    def alpha(self) -> float:
        """Running estimate of α: accepted over verified tokens, up to and including each first rejection."""
        if self._weight <= 0:
            return self.config.alpha
        return (self._accepted + self._shared_tokens * self._shared_alpha) / self._weight

    @property
    def _weight(self) -> float:
        """Weight of the estimate in tokens."""
        return self._tried + self._shared_tokens

    def believe(self, alpha: float, tokens: float) -> None:
        """Set the acceptance rate of other UEs as a prior that weighs `tokens` tokens of this UE's own.

        Raises:
            BadInput: alpha outside [0, 1], or tokens negative or not finite.
        """
        check_estimates(alpha, self.load, self.link)
        if not (math.isfinite(tokens) and tokens >= 0):
            raise BadInput(f"tokens must be finite and not negative, not {tokens}")
        self._shared_alpha, self._shared_tokens = alpha, tokens

    def resume(self, load: float) -> None:
        """Start a new response: replace the load estimate, and update the prices at the next round.

        Raises:
            BadInput: a load that is negative or not finite.
        """
        check_estimates(0.0, load, self.link)
        self.load = load
        self._rounds = self.config.every

    @property
    def settle_rounds(self) -> int:
        """Upper bound on the rounds after a step in load or link until the window is within 2·hysteresis of the best.

        Assumes the current duration of a round. Without hysteresis there is no bound on switching, and the value covers
        the estimates only.
        """
        memory = self.config.load_memory
        follow = math.ceil(math.log(REMAINS) / math.log1p(-1 / memory)) if memory > 1 else 1
        lost_s = self.config.hysteresis * self._now.time_s * committed(self._steady, self.alpha)
        left = math.ceil(self.config.switching_s / lost_s) if 0 < lost_s < math.inf else 1
        return follow + left + self.config.every - 1

    @property
    def due(self) -> bool:
        """Whether the next update recomputes the prices."""
        return self._rounds + 1 >= self.config.every

    def update(self, drafted: int, accepted: int, load: float | None = None, link: LinkCosts | None = None) -> int:
        """Update the estimates from one round, and return K_max for the next.

        Args:
            drafted: tokens drafted, fewer than the window if a stopping rule applied; 0: a round without speculation.
            load: the load as reported by the BS; None: unchanged.
            link: link times of this round; None: unchanged.

        Raises:
            BadInput: more tokens accepted than drafted, or as at construction; the estimates stay unchanged.
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
        return self._priced[self._steady]

    def _prices(self) -> dict[int, Price]:
        alpha = self.alpha
        return {window: self.cost.price(window, alpha, self.load, self.link) for window in self._windows}

    def _wins(self, alpha: float) -> bool:
        """Whether speculation is cheaper at an acceptance rate than the BS alone at its estimate."""
        windows = (window for window in self._windows if window)
        return any(self.cost.price(window, alpha, self.load, self.link) < self._priced[0] for window in windows)

    def _best(self) -> int:
        """Cheapest window; the smallest of equal ones."""
        return min(self._windows, key=self._priced.__getitem__)

    def _learn(self, drafted: int, accepted: int, load: float | None, link: LinkCosts | None) -> None:
        """Update the estimates: running means over the memory, plain means until it is filled."""
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
        """Add the loss of the last rounds to the sum, and switch if it exceeds the switching cost."""
        best = self._best()
        if not math.isfinite(self._now.time_s):
            self._switch(best)  # saturated: waiting makes it worse
            return
        if best == 0 and self._steady and self._may_pay():
            best = self._draftable()
        chosen = self._priced[best]
        loss = self._now.time_s - chosen.time_s - self.config.hysteresis * self._now.time_s
        self._lost_s = max(0.0, self._lost_s + rounds * loss * committed(self._steady, self.alpha))
        if self._lost_s > self.config.switching_s:
            self._switch(best)

    def _may_pay(self, optimism: float = 1.0) -> bool:
        """Whether speculation would win with α `optimism` standard errors above its estimate.

        Once speculation is off, α is not observed, so it is not turned off on an uncertain estimate.
        """
        alpha = self.alpha
        deviation = math.sqrt(max(alpha * (1 - alpha), 0.05) / max(self._weight, 1.0))
        return self._wins(min(1.0, alpha + optimism * deviation))

    def _draftable(self) -> int:
        """Cheapest window above 0."""
        return min((window for window in self._windows if window), key=self._priced.__getitem__)

    def _switch(self, window: int) -> None:
        if window != self._steady:
            self._steady = window
            self.switches += 1
            self._lost_s = self._saved_s = 0.0

    def _probe(self, drafted: int) -> None:
        """While speculation is off, accumulate the time budget of a probe, and start it when affordable."""
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
        if price_s <= self._saved_s and self._wins(1.0):
            self._probing, self._left, self._saved_s = window, self.config.probe_rounds, 0.0
