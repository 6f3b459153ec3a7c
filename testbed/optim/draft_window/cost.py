"""Expected time per committed token at each draft window.

Symbols: α acceptance rate of drafted tokens, k window, E(k) tokens committed per round, λ tokens per second that all
UEs together request from the BS.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from testbed.errors import BadInput
from testbed.options import Config

MAX_WINDOW = 256
SPREAD = 0.25
"""Coefficient of variation of a pass's duration."""
FORGOTTEN = 6.0
"""Age in mean passes beyond which the renewal process is stationary."""
WIDTHS = [SPREAD * math.sqrt(2 * passes) for passes in range(1, int(FORGOTTEN) + 4)]
"""√2 standard deviations of the end of the j-th pass, in mean passes, j = 1, 2, …"""
EACH, PART = 24, 8
"""A controller compares all windows up to 24; beyond, steps of an eighth. Prices are flat around the cheapest window:
over 8,000 random costs, the cheapest of these was at most 0.3 % above the cheapest of all.
"""


class LinkCosts(NamedTuple):
    """Link time of a round: `rtt_s` once, and `token_s` per drafted token."""

    rtt_s: float = 0.0
    token_s: float = 0.0


class Price(NamedTuple):
    """Price of one window. Prices compare by time, and at saturation by the load on the BS."""

    time_s: float
    """Expected seconds per committed token; inf at or beyond saturation."""
    busy: float
    """Load relative to saturation; 1 or more: no steady state."""


class TokenCost(Protocol):
    """Cost model that a controller minimises. The implementation defines the unit of `load`."""

    def price(self, window: int, alpha: float, load: float, link: LinkCosts) -> Price:
        """Price of a window at a given acceptance rate, load and link."""


def committed(window: int, alpha: float) -> float:
    """E = (1 − α^(k+1))/(1 − α) for one window. Fast, without input checks."""
    if alpha >= 1:
        return window + 1.0
    return 1.0 if alpha <= 0 else -math.expm1((window + 1) * math.log(alpha)) / (1 - alpha)


def cut_short(window: int, alpha: float, response: float) -> float:
    """Mean useful tokens per round for responses of `response` tokens, whose last round commits a surplus.

    By renewal theory the mean surplus is (E[X²]/E − 1)/2, with X tokens per round and E[X²] = Σ (2j + 1)·α^j.
    """
    tokens = committed(window, alpha)
    rest = 1 - alpha
    if rest < 1e-3:
        weighted = window * (window + 1) / 2
    else:
        power = alpha**window
        weighted = alpha * (1 - power - window * power * rest) / rest**2
    surplus = weighted / tokens
    return response * tokens / (response + surplus)


def until_next(age: float) -> float:
    """Mean time to the next pass when passes run back to back and the last round's pass ended `age` ago, both in mean
    pass durations.

    Renewal process: by Wald's identity the time is 1 + Σ_j P(T_j ≤ age) − age, where T_j, the end of the j-th pass
    since, is taken as normal with mean j and standard deviation SPREAD·√j. It is about 1 − age below one pass, longer
    just above it, since a pass has just been missed, and constant for large ages.
    """
    if age >= FORGOTTEN:
        return (1 + SPREAD**2) / 2
    ended = [math.erfc((j - age) / width) / 2 for j, width in enumerate(WIDTHS[: int(age) + 3], 1)]
    return 1 + sum(ended) - age


class RoundCosts(Config, frozen=True):
    """Cost of rounds that draft k tokens on the device, send them, wait, and are verified in a pass of the BS.

    A pass takes a + r·(requests) + b·(tokens) and serves all rounds that wait when it begins. With Λ = λ/E rounds per
    second of b' = r + b·(k + 1) each, rounds take a share ρ = Λ·b' of the BS's time; prompts, p seconds per response,
    add to ρ. Passes that run back to back take a/(1 − ρ) on average; the one during which a round arrives is longer by
    length bias, S = a/(1 − ρ) + b'·ρ/(1 − ρ²). The round's own pass contains it and the arrivals during S:
    a + b' + ρ·S. With Poisson arrivals, another pass follows a round's last one immediately with probability
    1 − e^(−ΛS); the round, away for the time Z of drafting and link, then waits for the end of the pass during which it
    arrives (`until_next`). All UEs are assumed to use the same window, so the optimum is the common one.

    k = 0 is the BS decoding alone and streaming, with the request in every pass after its first: (a + b')/(1 − λ·b')
    per token, which is the latency model (eq. 1) with C2 = b'. The load is λ in tokens per second.

    Raises:
        BadInput: a time that is negative or not finite, or a pass without duration.
    """

    draft_s: float = 0.01
    """Seconds per drafted token on the device."""
    verify_base_s: float = 0.03
    """a, seconds per pass."""
    verify_token_s: float = 0.001
    """b, seconds per token in a pass."""
    verify_request_s: float = 0.0
    """r, seconds per request in a pass, for example to read its keys and values."""
    prefill_s: float = 0.0
    """p, seconds of the BS per prompt; used if `response_tokens` is known."""
    max_requests: float = math.inf
    """Maximum requests in a pass."""
    stream_s: float = 0.0
    """Seconds per token streamed without speculation, besides the pass."""
    response_tokens: float = 0.0
    """Mean tokens of a response; 0: long enough to neglect the last round's surplus."""

    def __post_init__(self) -> None:
        for name in (
            "draft_s", "verify_base_s", "verify_token_s", "verify_request_s", "prefill_s", "stream_s",
            "response_tokens",
        ):  # fmt: skip
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise BadInput(f"{name} must be finite and not negative, not {value}")
        if not self.max_requests >= 1:
            raise BadInput(f"a pass holds 1 request or more, not {self.max_requests}")
        if self.verify_base_s + self.verify_token_s == 0:
            raise BadInput("a pass takes time: verify_base_s or verify_token_s must be positive")

    def price(self, window: int, alpha: float, load: float, link: LinkCosts) -> Price:
        """Price of a window: duration of a round over E."""
        length = self.response_tokens
        tokens, busy, least = self._busy(window, alpha, load)
        if least >= 1:
            return Price(math.inf, least)
        prompt_s = self.prefill_s / length if length else 0.0
        if window == 0:
            lasts = self.alone_s(0) / (1 - busy)
            first = -math.expm1(-load * lasts) * lasts / 2 / length if length else 0.0
            once = link.rtt_s / length if length else 0.0
            return Price(lasts + first + once + prompt_s + self.stream_s, busy)
        others_s = self._others_s(window, load / tokens, busy, link)
        return Price((self._away_s(window, link) + self.alone_s(window) + others_s) / tokens + prompt_s, busy)

    def alone_s(self, window: int) -> float:
        """Seconds of a pass with one round, a + b'."""
        return self.verify_base_s + self._work_s(window)

    def _busy(self, window: int, alpha: float, load: float) -> tuple[float, float, float]:
        """Tokens per round, ρ, and the load relative to saturation."""
        length = self.response_tokens
        tokens = cut_short(window, alpha, length) if length else committed(window, alpha)
        prompts = load / length * self.prefill_s if length else 0.0
        busy = load / tokens * self._work_s(window) + prompts
        return tokens, busy, busy + load / tokens * self.verify_base_s / self.max_requests

    def _others_s(self, window: int, rounds: float, busy: float, link: LinkCosts) -> float:
        base, work, away = self.verify_base_s, self._work_s(window), self._away_s(window, link)
        other = max(base + work, base / (1 - busy) + work * busy / (1 - busy * busy))
        return (-math.expm1(-rounds * other) * until_next(away / other) + busy) * other

    def _work_s(self, window: int) -> float:
        return self.verify_request_s + self.verify_token_s * (window + 1)

    def _away_s(self, window: int, link: LinkCosts) -> float:
        return window * (self.draft_s + link.token_s) + link.rtt_s


def check_estimates(alpha: float, load: float, link: LinkCosts) -> None:
    """Check the estimates that windows are priced at.

    Raises:
        BadInput: α outside [0, 1], a load or a link time that is negative or not finite.
    """
    if not 0 <= alpha <= 1:
        raise BadInput(f"alpha must lie in [0, 1], not {alpha}")
    for name, value in (("load", load), ("rtt_s", link.rtt_s), ("token_s", link.token_s)):
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(f"{name} must be finite and not negative, not {value}")


def compared(max_window: int, least_window: int = 0) -> list[int]:
    """The windows that a controller compares, in order, least and largest included: see `EACH`."""
    found, window = list[int](), least_window
    while window < max_window:
        found.append(window)
        window += 1 if window < EACH else window // PART
    return [*found, max_window]


def prices(
    cost: TokenCost, alpha: float, load: float, link: LinkCosts, max_window: int, least_window: int = 0
) -> list[Price]:
    """Prices of all windows from the least to the largest.

    Raises:
        BadInput: as `check_estimates` and `check_windows`.
    """
    check_estimates(alpha, load, link)
    check_windows(max_window, least_window)
    return [cost.price(window, alpha, load, link) for window in range(least_window, max_window + 1)]


def check_windows(max_window: int, least_window: int) -> None:
    """Check the range of windows to choose from.

    Raises:
        BadInput: a window outside 0..MAX_WINDOW, or the least above the largest.
    """
    if not 1 <= max_window <= MAX_WINDOW:
        raise BadInput(f"max_window must lie in 1..{MAX_WINDOW}, not {max_window}")
    if not 0 <= least_window <= max_window:
        raise BadInput(f"least_window must lie in 0..{max_window}, not {least_window}")
