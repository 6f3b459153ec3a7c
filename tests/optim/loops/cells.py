"""Random small cells, and their optimum by brute force: written from the model's definition, without its code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from testbed.optim.loops.state import CellState, Measured, RoundMode, UeState
from testbed.optim.pass_time import Coefficients

A100 = Coefficients(a=3.314e-5, b_compute=3.450e-8, b_read=4.620e-6, c=1.486e-2)
"""WISP, Table 12."""
SHARES = 200
LATE = 0.1
PASS_S = 0.03
"""Pass at which loads were measured."""


def modes(alpha: float, hidden: int = 2048) -> tuple[RoundMode, ...]:
    """FH, SH and greedy of WISV's models: 17 bits per id, 16 per element of a hidden state; the judge keeps some."""
    kept = alpha + 0.3 * (1 - alpha)
    return (
        RoundMode("greedy", (alpha,), token_bits=17, fixed_bits=200),
        RoundMode("fh", (kept,), token_bits=17 + 16 * hidden, fixed_bits=200),
        RoundMode("sh", (kept,), token_bits=17, fixed_bits=200, asked=1 - alpha, asked_bits=16 * hidden),
    )


def random_cell(rng: np.random.Generator, ues: int, least: int = 1, measured: bool = False) -> CellState:
    """A cell whose UEs differ in everything; their windows begin at `least` or above. Rounds per pass and activity are
    given, or those of a cell that was measured.
    """
    reserved = rng.random() < 0.5
    found = []
    for _ in range(ues):
        alpha = float(rng.uniform(0.4, 0.95))
        promise = None if rng.random() < 0.4 else float(rng.uniform(1, 12))
        ways = modes(alpha)
        picked = tuple(ways[i] for i in sorted(rng.choice(3, size=int(rng.integers(1, 3)), replace=False)))
        if rng.random() < 0.5:
            picked = (*picked, picked[0]._replace(ahead=1.0, guess=float(rng.uniform(0.3, 1))))
        low = int(rng.integers(least, 4))
        found.append(
            UeState(
                rate_bps=float(10 ** rng.uniform(4.8, 7.7)), draft_s=float(rng.uniform(0.003, 0.04)),
                link_s=float(rng.uniform(0.002, 0.04)), modes=picked, windows=(low, low + 1), speed_tps=promise,
                activity=1.0 if reserved else float(rng.uniform(0.05, 1)),
                joins=1.0 if reserved else float(rng.uniform(0.1, 1)), cached=float(rng.uniform(50, 400)),
                backlog_bits=float(rng.choice([0.0, 1e4])),
            )
        )  # fmt: skip
    waits = float(rng.uniform(1, 1.5))
    if not measured:
        return CellState(tuple(found), A100, waits)
    weighted = [replace(ue, weight=float(rng.uniform(0.3, 3))) for ue in found]
    seen = Measured(PASS_S, sending=float(rng.uniform(0, 1)) * sum(ue.weight for ue in weighted), rounds=1.1)
    return CellState(tuple(weighted), A100, waits, seen, prompts=float(rng.uniform(0, 0.4)))


def expected_tokens(acceptance: tuple[float, ...], window: int) -> float:
    """1 + α₁ + α₁·α₂ + …"""
    tokens = reach = 1.0
    for position in range(window):
        reach *= acceptance[min(position, len(acceptance) - 1)]
        tokens += reach
    return tokens


def choices(ue: UeState) -> list[tuple[int, int]]:
    """Modes and windows."""
    return [(m, k) for m in range(len(ue.modes)) for k in range(ue.windows[0], ue.windows[1] + 1)]


def work_s(ue: UeState, window: int) -> float:
    """WISP eq. 19 for one request."""
    new, old = window + 1, ue.cached
    return A100.a * new + A100.b_compute * (old + new) * new + A100.b_read * old


class Parts(NamedTuple):
    """Times of a round, in seconds, without a share of the radio."""

    rest: float
    """Time of everything else, for given passes."""
    air: float
    """Time on the uplink if no other UE sends."""


def parts(cell: CellState, ue: UeState, choice: tuple[int, int], at_bs_s: float) -> Parts:
    """Times of a round that stays at the BS for so long, one that drafts."""
    mode, window = ue.modes[choice[0]], choice[1]
    requested = window * mode.asked
    bits = ue.backlog_bits + mode.fixed_bits + window * mode.token_bits + requested * mode.asked_bits
    trips = 1 + (1 - (1 - mode.asked) ** window)
    air_s, drafts_s, link_s = bits / ue.rate_bps, window * ue.draft_s, trips * ue.link_s
    if not mode.ahead:
        return Parts(drafts_s + link_s + at_bs_s, air_s)
    rates = [mode.acceptance[min(i, len(mode.acceptance) - 1)] for i in range(window + 1)]
    hit = math.prod(rates[:-1]) * min(rates[-1], mode.guess)
    further_s = hit * (window + 1) * ue.draft_s
    overlapped = (1 - hit) * drafts_s + (further_s + link_s + at_bs_s) / (1 + hit)
    drafting_s = (1 - hit) * (drafts_s + link_s + at_bs_s) + further_s
    return Parts(max(overlapped, drafting_s), air_s * (1 / (1 + hit) + 1 - hit))


def loads(cell: CellState, ue: UeState, choice: tuple[int, int], pass_s: float) -> tuple[float, float]:
    """Rounds per pass of `pass_s`, and activity: given, or those of rounds in the measured cell."""
    if cell.measured is None:
        return ue.joins, ue.activity
    own, then = (parts(cell, ue, choice, cell.waits * length_s) for length_s in (cell.measured.pass_s, pass_s))
    mean = min(1.0, max(1e-4, cell.measured.sending / sum(one.weight for one in cell.ues)))
    sent_s = own.air * (1 - mean + cell.measured.sending / ue.weight)
    return min(1.0, cell.measured.rounds * pass_s / (then.rest + sent_s)), max(1e-4, sent_s / (own.rest + sent_s))


def mean_pass_s(cell: CellState, combination: Sequence[tuple[int, int]]) -> float:
    """The mean pass at which the rounds per pass are those of rounds with this pass."""
    pass_s = A100.c if cell.measured is None else cell.measured.pass_s
    for _ in range(1 if cell.measured is None else 100):
        joins = [
            loads(cell, ue, choice, pass_s)[0] if choice[1] else 1.0
            for ue, choice in zip(cell.ues, combination, strict=True)
        ]
        works = [work_s(ue, choice[1]) for ue, choice in zip(cell.ues, combination, strict=True)]
        total = sum(share * work for share, work in zip(joins, works, strict=True))
        before_s, pass_s = pass_s, (A100.c + total) / (1 - cell.prompts)
        if abs(pass_s - before_s) < 1e-9:
            break
    return pass_s


def speeds(cell: CellState, at: int, choice: tuple[int, int], pass_s: float, shares: np.ndarray) -> np.ndarray:
    """Token speed of a UE at each of these shares; without a window it is in every pass, with one token."""
    ue, (mode, window) = cell.ues[at], choice
    if not window:
        return np.full(len(shares), 1 / pass_s)
    joins, activity = loads(cell, ue, choice, pass_s)
    found = parts(cell, ue, choice, cell.waits * pass_s + (1 - joins) * work_s(ue, window))
    with np.errstate(divide="ignore"):
        air_s = found.air * (1 - activity) + found.air * activity / shares
    return expected_tokens(ue.modes[mode].acceptance, window) / (found.rest + air_s)


def utilities(kind: str, speed: np.ndarray, promise: float | None) -> np.ndarray:
    """Goodput or the logarithm of the speed."""
    if kind == "fair":
        with np.errstate(divide="ignore"):
            return np.log(speed)
    return np.where(speed >= (promise or 0.0) * (1 - 1e-9), speed, LATE * speed)


def brute_force(cell: CellState, kind: str) -> float:
    """The best value over all combinations of choices, and shares in steps of 1/200 that add up to 1 at most."""
    grid, best = np.arange(SHARES + 1) / SHARES, -math.inf
    back = np.arange(SHARES + 1)[:, None] - np.arange(SHARES + 1)[None, :]
    for combination in itertools.product(*map(choices, cell.ues)):
        pass_s = mean_pass_s(cell, combination)
        total = np.zeros(SHARES + 1)
        for at, choice in enumerate(combination):
            own = utilities(kind, speeds(cell, at, choice, pass_s, grid), cell.ues[at].speed_tps)
            total = np.where(back >= 0, total[np.maximum(back, 0)] + own[None, :], -math.inf).max(axis=1)
        best = max(best, float(total[-1]))
    return best
