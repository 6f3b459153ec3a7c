"""Time per token of rounds with and without lookahead.

Symbols: K window, d seconds per drafted token, R seconds from sending a window to its verdict, of which v in the pass,
α probability that a drafted token is accepted if those before it are, g that the guess of the token after an accepted
window is right; α unless known. A round commits E = (1 − α^(K+1))/(1 − α) tokens. Where α differs by position,
E = 1 + Σ_k Π_{j≤k} α_j, and Π_{j≤K} α_j stands for α^K.

Lookahead 0: a round takes K·d + R.

Lookahead 1: while window i is away, the guess and window i + 1 are drafted in D = (K + 1)·d and sent. It is valid with
probability p = α^K·g, independently for each window. Until the first miss, with s_i the time at which window i is sent
and t_i that of its verdict, both after the last miss:

    s_1 = K·d,  t_1 = s_1 + R                                          drafted after the miss
    b_i = max(s_i, t_{i−1}),  t_0 = 0                                  begin of drafting window i + 1: one at a time
    s_{i+1} = b_i + D
    t_{i+1} = max(s_{i+1} + R, t_i + v)                                verified one after the other

A miss ends the drafting ahead at once, and so does a verdict that comes before the guess is drafted, t_i < b_i + d: the
window after it is drafted from the verdict. With c_i the probability that window i belongs to the chain, c_1 = 1 and
c_{i+1} = p·c_i, or 0 after such a verdict, the mean time per token is Σ (c_i − c_{i+1})·t_i / (E·Σ c_i), by Wald's
identity. It is never longer than that of lookahead 0.

The model leaves out what a void window costs others and the uplink, the rest of the token that a real drafter computes
when a miss arrives, and the surplus of a response's last round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.optim.draft_window.cost import committed

NEGLIGIBLE = 1e-9
"""Probability of further hits up to which chains are followed."""
MOST_WINDOWS = 100_000


class Waits(NamedTuple):
    """Times of a UE's rounds."""

    token_s: float
    """d"""
    round_trip_s: float
    """R"""
    pass_s: float = 0.0
    """v, at most R"""


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
    rates = (alpha,) if isinstance(alpha, (int, float)) else tuple(alpha)
    guess = guess if guess is not None or not rates else rates[min(window, len(rates) - 1)]
    if window < 1 or guess is None or not all(0 <= one <= 1 for one in (*rates, guess)):
        raise BadInput(f"a window has 1 token or more, and probabilities lie in [0, 1], not {window}, {alpha}, {guess}")
    if not all(math.isfinite(s) and s >= 0 for s in waits) or waits.pass_s > waits.round_trip_s:
        raise BadInput("times must be finite and not negative, and a pass is part of the round trip")
    if len(rates) == 1:
        tokens, whole = committed(window, rates[0]), rates[0] ** window
    else:
        reached = list(accumulate((*rates, *rates[-1:] * (window - len(rates)))[:window], mul))
        tokens, whole = 1 + sum(reached), reached[-1]
    if lookahead == 0:
        return (window * waits.token_s + waits.round_trip_s) / tokens
    return _cycle_s(window, whole * guess, waits) / tokens


def _cycle_s(window: int, hit: float, waits: Waits) -> float:
    """Mean seconds per window with lookahead 1; `hit` is p."""
    sent_s = window * waits.token_s
    before_s, verdict_s = 0.0, sent_s + waits.round_trip_s
    chance, windows, total_s = 1.0, 0.0, 0.0
    for _ in range(MOST_WINDOWS):
        begin_s = max(sent_s, before_s)
        further = 0.0 if verdict_s < begin_s + waits.token_s else chance * hit
        windows += chance
        total_s += (chance - further) * verdict_s
        if further < NEGLIGIBLE:
            return total_s / windows
        chance, sent_s = further, begin_s + (window + 1) * waits.token_s
        before_s, verdict_s = verdict_s, max(sent_s + waits.round_trip_s, verdict_s + waits.pass_s)
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
