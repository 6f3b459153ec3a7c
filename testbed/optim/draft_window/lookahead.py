"""Time per token of rounds with and without lookahead.

Symbols: K window, d seconds per drafted token, R seconds from sending a window to its verdict, of which v in the pass,
α probability that a drafted token is accepted if those before it are, g that the guess of the token after an accepted
window is right (α unless known), a seconds that a rejection adds to a verdict (under SH, those of the trip for hidden
states). A round commits E = (1 − α^(K+1))/(1 − α) tokens. Where α differs by position, E = 1 + Σ_k Π_{j≤k} α_j, and
Π_{j≤K} α_j stands for α^K.

Lookahead 0: a round takes K·d + R + (1 − α^K)·a.

Lookahead 1: while window i is away, the guess and window i + 1 are drafted in D = (K + 1)·d and sent. It is valid with
probability p = α^K·g, independently for each window. Until the first miss, with s_i the time at which window i is sent
and t_i that of its verdict, both after the last miss:

    s_1 = K·d,  t_1 = s_1 + R                                          drafted after the miss
    b_i = max(s_i, t_{i−1}),  t_0 = 0                                  begin of drafting window i + 1: one at a time
    s_{i+1} = b_i + D
    t_{i+1} = max(s_{i+1} + R, t_i + v)                                verified one after the other

A miss ends the drafting ahead at once, and so does a verdict that comes before the guess is drafted, t_i < b_i + d: the
window after it is drafted from the verdict. With c_i the probability that window i belongs to the chain, c_1 = 1 and
c_{i+1} = p·c_i, or 0 after such a verdict, the mean time per token is, by Wald's identity,
(Σ (c_i − c_{i+1})·t_i / Σ c_i + (1 − α^K)·a) / E. It is never longer than that of lookahead 0.

A response of N tokens takes longer than N of these, since rounds and chains end with it. Its last window ends where the
response does, if all its tokens are accepted. With f(n) and h_i(n) the times until n tokens more are committed, from a
miss and from the begin of the chain whose window i is verified next, m the tokens that this window commits, and
f(n) = 0 for n ≤ 0,

    f(n) = h_1(n),  h_i(n) = E[t_i + f(n − m)] or, where the chain goes on (m = K + 1, then with g), h_{i+1}(n − m)

where t_i of a window that ends after n < K tokens is max(s_i − (K − n)·d + R, t_{i−1} + v).

The model leaves out what a void window costs others and the uplink, and the rest of the token that a real drafter
computes when a miss arrives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from operator import mul
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.optim.draft_window.cost import committed

NEGLIGIBLE = 1e-9
"""Probability of further hits up to which chains are followed."""
MOST_WINDOWS, MOST_TOKENS = 100_000, 4096


class Waits(NamedTuple):
    """Times of a UE's rounds."""

    token_s: float
    """d"""
    round_trip_s: float
    """R"""
    pass_s: float = 0.0
    """v, at most R"""
    rejection_s: float = 0.0
    """a"""


Rates = float | Sequence[float]
"""α, or α_1, α_2, … by position in the window, of which the last one holds for those behind."""


def token_s(window: int, alpha: Rates, waits: Waits, lookahead: int, guess: float | None = None) -> float:
    """Mean seconds per committed token.

    Args:
        window: K, at least 1.
        lookahead: 0 or 1.
        guess: g; None: α_{K+1}, or the last rate.

    Raises:
        BadInput: a window below 1, a probability outside [0, 1], times that are negative or not finite, or a pass
            longer than the round trip.
    """
    rates, guess = _checked(window, alpha, waits, guess)
    if len(rates) == 1:
        tokens, whole = committed(window, rates[0]), rates[0] ** window
    else:
        reached = _reached(window, rates)
        tokens, whole = 1 + sum(reached), reached[-1]
    rejected_s = (1 - whole) * waits.rejection_s
    if lookahead == 0:
        return (window * waits.token_s + waits.round_trip_s + rejected_s) / tokens
    return (_cycle_s(window, whole * guess, waits) + rejected_s) / tokens


def response_s(
    tokens: int, window: int, alpha: Rates, waits: Waits, lookahead: int, guess: float | None = None
) -> float:
    """Mean seconds of a response; arguments and errors as for `token_s`.

    Args:
        tokens: N, at least 1 and at most `MOST_TOKENS`.
    """
    rates, guess = _checked(window, alpha, waits, guess)
    if not 1 <= tokens <= MOST_TOKENS:
        raise BadInput(f"a response has 1 to {MOST_TOKENS} tokens here, not {tokens}")
    reached = [1.0, *_reached(window, rates)]
    links = list(islice(_chain(window, waits), 1 + (tokens // (window + 1) if lookahead else 0)))
    left_s, ahead_s = [0.0], [[0.0] * (tokens + 1) for _ in range(len(links) + 1)]  # nothing reaches the last row
    for n in range(1, tokens + 1):
        drafted = min(window, n)
        ends = [reached[m - 1] - reached[m] for m in range(1, drafted + 1)]  # chances of 1 to K tokens, with a miss
        missed_s = sum(chance * left_s[n - m] for m, chance in enumerate(ends, 1))
        after, whole = max(0, n - window - 1), reached[drafted]
        for i, link in enumerate(links):
            on = guess if lookahead and link.goes_on and after else 0.0
            then_s = on * (ahead_s[i + 1][after] if on else 0.0) + (1 - on) * left_s[after]
            hit_s = (1 - on) * link.verdict_s((window - drafted) * waits.token_s) + then_s
            ahead_s[i][n] = (1 - whole) * (link.verdict_s() + waits.rejection_s) + missed_s + whole * hit_s
        left_s.append(ahead_s[0][n])
    return left_s[tokens]


def _checked(window: int, alpha: Rates, waits: Waits, guess: float | None) -> tuple[list[float], float]:
    """Rates, and g.

    Raises:
        BadInput: see `token_s`.
    """
    rates = [alpha] if isinstance(alpha, (int, float)) else list(alpha)
    guess = guess if guess is not None or not rates else rates[min(window, len(rates) - 1)]
    if window < 1 or guess is None or not all(0 <= one <= 1 for one in (*rates, guess)):
        raise BadInput(f"a window has 1 token or more, and probabilities lie in [0, 1], not {window}, {alpha}, {guess}")
    if not all(math.isfinite(s) and s >= 0 for s in waits) or waits.pass_s > waits.round_trip_s:
        raise BadInput("times must be finite and not negative, and a pass is part of the round trip")
    return rates, guess


def _reached(window: int, rates: list[float]) -> list[float]:
    """Π_{j≤k} α_j, k = 1..K."""
    return list(accumulate((*rates, *rates[-1:] * (window - len(rates)))[:window], mul))


class _Link(NamedTuple):
    """Window i of a chain."""

    arrives_s: float
    """s_i + R"""
    follows_s: float
    """t_{i−1} + v, 0 of the first"""
    goes_on: bool
    """Whether the guess after it is drafted before its verdict."""

    def verdict_s(self, earlier_s: float = 0.0) -> float:
        """t_i, if it is sent earlier."""
        return max(self.arrives_s - earlier_s, self.follows_s)


def _chain(window: int, waits: Waits) -> Iterator[_Link]:
    """The windows of a chain that never ends."""
    sent_s, before_s, follows_s = window * waits.token_s, 0.0, 0.0
    while True:
        arrives_s, begin_s = sent_s + waits.round_trip_s, max(sent_s, before_s)
        before_s = max(arrives_s, follows_s)
        yield _Link(arrives_s, follows_s, before_s >= begin_s + waits.token_s)
        sent_s, follows_s = begin_s + (window + 1) * waits.token_s, before_s + waits.pass_s


def _cycle_s(window: int, hit: float, waits: Waits) -> float:
    """Mean seconds per window with lookahead 1; `hit` is p."""
    chance, windows, total_s, verdict_s = 1.0, 0.0, 0.0, 0.0
    for link in islice(_chain(window, waits), MOST_WINDOWS):
        verdict_s, further = link.verdict_s(), chance * hit if link.goes_on else 0.0
        windows += chance
        total_s += (chance - further) * verdict_s
        if further < NEGLIGIBLE:
            return total_s / windows
        chance = further
    return (total_s + chance * verdict_s) / windows


def gain(window: int, alpha: float, waits: Waits, guess: float | None = None) -> float:
    """Speed with lookahead 1, relative to 0, at the same window.

    Raises:
        BadInput: see `token_s`.
    """
    ahead_s = token_s(window, alpha, waits, 1, guess)
    return token_s(window, alpha, waits, 0) / ahead_s if ahead_s > 0 else 1.0


def best_window(most: int, alpha: float, waits: Waits, lookahead: int) -> int:
    """The window of 1 to `most` tokens with the least time per token.

    Raises:
        BadInput: see `token_s`.
    """
    return min(range(1, most + 1), key=lambda window: token_s(window, alpha, waits, lookahead))
