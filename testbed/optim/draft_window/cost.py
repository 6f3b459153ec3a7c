"""What a committed token costs at each draft window: on one UE's link, or on a server that drafts itself.

Symbols: α the chance that a drafted token is accepted, k the window, E(k) tokens committed a round, λ tokens a second
that all users together ask of the BS.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from testbed.config import Config
from testbed.errors import BadInput
from testbed.optim.serving.model import CycleCosts

MAX_WINDOW = 256
SPREAD = 0.25
"""Deviation of a pass's length over its mean: what a pass holds differs from one to the next."""
FORGOTTEN = 6.0
"""Passes after which it does not matter when a round left."""


class LinkCosts(NamedTuple):
    """What the link costs a round: `rtt_s` once, `token_s` for every drafted token sent."""

    rtt_s: float = 0.0
    token_s: float = 0.0


class Price(NamedTuple):
    """Of one window. Prices compare as they should: by time, and among the hopeless by how busy they make the BS."""

    time_s: float
    """Expected seconds for a committed token; inf at or beyond saturation."""
    busy: float
    """Share of saturation, 1 and more where there is no steady state."""


class TokenCost(Protocol):
    """What a controller minimises. `load` is in the unit that the cost is defined in."""

    def price(self, window: int, alpha: float, load: float, link: LinkCosts) -> Price:
        """Of a window at an acceptance, a load and a link."""


def committed(window: int, alpha: float) -> float:
    """E = (1 − α^(k+1))/(1 − α) for one window, as quick as a controller needs it; the caller checks its input."""
    if alpha >= 1:
        return window + 1.0
    return 1.0 if alpha <= 0 else -math.expm1((window + 1) * math.log(alpha)) / (1 - alpha)


def cut_short(window: int, alpha: float, response: float) -> float:
    """Tokens committed a round when a response ends after so many: its last round commits some that nobody wants.

    The surplus is (E[X²]/E − 1)/2 on average, X the tokens of a round, by renewal theory; E[X²] = Σ (2j + 1)·α^j.
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
    """Time to the next pass, where passes follow one another and a round left at the end of one `age` ago; both in mean
    passes.

    A renewal process: by Wald's identity 1 + Σ_j P(T_j ≤ age) − age, T_j the end of the j-th pass since, here normal
    with mean j and deviation SPREAD·√j. Below one pass it is about 1 − age, a little above it a round has just missed
    one, and after many it does not matter when the round left.
    """
    if age >= FORGOTTEN:
        return (1 + SPREAD**2) / 2
    ended = (math.erfc((j - age) / (SPREAD * math.sqrt(2 * j))) / 2 for j in range(1, int(age) + 4))
    return 1 + sum(ended) - age


class RoundCosts(Config, frozen=True):
    """Device, link and BS: a round drafts k tokens on the device, sends them, waits, and is verified in a pass.

    A pass takes a + r·(its requests) + b·(its tokens) and serves whoever waits when it begins. With Λ = λ/E rounds a
    second, each of b' = r + b·(k + 1), a share ρ = Λ·b' of the BS's time goes to rounds; prompts, p of its time for
    each response, add their share to ρ where it says how long passes are. While passes follow one another, one takes
    a/(1 − ρ) on average, and the one that a round comes upon, being likelier a long one, S = a/(1 − ρ) + b'·ρ/(1 − ρ²).
    The pass that the round is in holds it and those that came during S: a + b' + ρ·S. A round waits if another pass
    followed its last one at once, 1 − e^(−ΛS) with Poisson arrivals; then it was away for the time Z of drafting and
    link and waits for the end of the pass that it comes upon (`until_next`). Every UE is taken to use the same window,
    so that the optimum is that of all of them, not what one could take from the others.

    k = 0 is the BS decoding alone and streaming, the request in every pass once it got into the first:
    (a + b')/(1 − λ·b') a token, the latency model (eq. 1) with C2 = b' a token. The load is λ in tokens a second.

    Raises:
        BadInput: a time that is negative or not finite, or a pass that takes no time at all.
    """

    draft_s: float = 0.01
    """Of a drafted token, on the device."""
    verify_base_s: float = 0.03
    """a, of a pass."""
    verify_token_s: float = 0.001
    """b, of a token in it."""
    verify_request_s: float = 0.0
    """r, of a request in it, however many tokens it has there: reading its keys and values, say."""
    prefill_s: float = 0.0
    """p, of a response's prompt, on the BS; counts where `response_tokens` is known."""
    max_requests: float = math.inf
    """Of a pass."""
    stream_s: float = 0.0
    """Of a token that is streamed without speculation, beside the pass."""
    response_tokens: float = 0.0
    """Mean length of a response; 0: so long that its last round does not matter."""

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
        """Seconds for a committed token, all of a round over E."""
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
        """A pass over one round, a + b'."""
        return self.verify_base_s + self._work_s(window)

    def _busy(self, window: int, alpha: float, load: float) -> tuple[float, float, float]:
        """Tokens a round, ρ, and the share of saturation."""
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


class ServerCosts(NamedTuple):
    """A server that drafts itself: the latency model of eq. 3 over the tokens of a response; the load is in requests
    a second, and the link does not matter.
    """

    costs: CycleCosts
    decode: float
    """g, tokens of a response."""

    def price(self, window: int, alpha: float, load: float, link: LinkCosts) -> Price:
        """L/g."""
        cycles = self.decode / committed(window, alpha)
        c = self.costs
        busy = load * (c.c2_p + cycles * (c.c2_v + window * c.c2_d))
        if busy >= 1:
            return Price(math.inf, busy)
        return Price((c.c1_p + cycles * (c.c1_v + window * c.c1_d)) / (1 - busy) / self.decode, busy)


def check_estimates(alpha: float, load: float, link: LinkCosts) -> None:
    """What a price is asked for.

    Raises:
        BadInput: α outside [0, 1], a load or a link time that is negative or not finite.
    """
    if not 0 <= alpha <= 1:
        raise BadInput(f"alpha must lie in [0, 1], not {alpha}")
    for name, value in (("load", load), ("rtt_s", link.rtt_s), ("token_s", link.token_s)):
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(f"{name} must be finite and not negative, not {value}")


def prices(
    cost: TokenCost, alpha: float, load: float, link: LinkCosts, max_window: int, least_window: int = 0
) -> list[Price]:
    """Of every window from the least to the largest.

    Raises:
        BadInput: as `check_estimates`; windows outside 0..MAX_WINDOW, or the least above the largest.
    """
    check_estimates(alpha, load, link)
    check_windows(max_window, least_window)
    return [cost.price(window, alpha, load, link) for window in range(least_window, max_window + 1)]


def check_windows(max_window: int, least_window: int) -> None:
    """The range of windows to choose from.

    Raises:
        BadInput: outside 0..MAX_WINDOW, or the least above the largest.
    """
    if not 1 <= max_window <= MAX_WINDOW:
        raise BadInput(f"max_window must lie in 1..{MAX_WINDOW}, not {max_window}")
    if not 0 <= least_window <= max_window:
        raise BadInput(f"least_window must lie in 0..{max_window}, not {least_window}")
