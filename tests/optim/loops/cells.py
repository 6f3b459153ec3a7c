"""Random small cells, and their optimum by brute force: written from the model's definition, without its code."""

from __future__ import annotations

import itertools
import math

import numpy as np

from testbed.optim.loops.state import CellState, RoundMode, UeState
from testbed.optim.pass_time import Coefficients

A100 = Coefficients(a=3.314e-5, b_compute=3.450e-8, b_read=4.620e-6, c=1.486e-2)
"""WISP, Table 12."""
SHARES = 200
LATE = 0.1


def modes(alpha: float, hidden: int = 2048) -> tuple[RoundMode, ...]:
    """FH, SH and greedy of WISV's models: 17 bits per id, 16 per element of a hidden state; the judge keeps some."""
    kept = alpha + 0.3 * (1 - alpha)
    return (
        RoundMode("greedy", (alpha,), token_bits=17, fixed_bits=200),
        RoundMode("fh", (kept,), token_bits=17 + 16 * hidden, fixed_bits=200),
        RoundMode("sh", (kept,), token_bits=17, fixed_bits=200, asked=1 - alpha, asked_bits=16 * hidden),
    )


def random_cell(rng: np.random.Generator, ues: int, least: int = 1) -> CellState:
    """A cell whose UEs differ in everything; their windows begin at `least` or above."""
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
    return CellState(tuple(found), A100, waits=float(rng.uniform(1, 1.5)))


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


def passes(cell: CellState, ue: UeState, window: int) -> tuple[float, float]:
    """Rounds per pass, and passes that a round stays: a UE without windows is in every pass, with one token."""
    return (ue.joins, cell.waits) if window else (1.0, 1.0)


def speeds(cell: CellState, at: int, choice: tuple[int, int], pass_s: float, shares: np.ndarray) -> np.ndarray:
    """Token speed of a UE at each of these shares."""
    ue, mode = cell.ues[at], cell.ues[at].modes[choice[0]]
    window = choice[1]
    joins, waits = passes(cell, ue, window)
    if not window:
        return np.full(len(shares), 1 / (waits * pass_s + (1 - joins) * work_s(ue, 0)))
    requested = window * mode.asked
    bits = ue.backlog_bits + mode.fixed_bits + window * mode.token_bits + requested * mode.asked_bits
    trips = 1 + (1 - (1 - mode.asked) ** window)
    alone_s = bits / ue.rate_bps
    with np.errstate(divide="ignore"):
        air_s = alone_s * (1 - ue.activity) + alone_s * ue.activity / shares
    at_bs_s = waits * pass_s + (1 - joins) * work_s(ue, window)
    drafts_s, link_s = window * ue.draft_s, trips * ue.link_s
    if mode.ahead:
        rates = [mode.acceptance[min(i, len(mode.acceptance) - 1)] for i in range(window + 1)]
        hit = math.prod(rates[:-1]) * min(rates[-1], mode.guess)
        further_s = hit * (window + 1) * ue.draft_s
        overlapped = (1 - hit) * drafts_s + (further_s + link_s + at_bs_s) / (1 + hit)
        drafts_s = max(overlapped, (1 - hit) * (drafts_s + link_s + at_bs_s) + further_s)
        air_s, link_s, at_bs_s = air_s * (1 / (1 + hit) + 1 - hit), 0.0, 0.0
    return expected_tokens(mode.acceptance, window) / (drafts_s + link_s + air_s + at_bs_s)


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
        chosen = [(ue, choice[1]) for ue, choice in zip(cell.ues, combination, strict=True)]
        pass_s = A100.c + sum(passes(cell, ue, window)[0] * work_s(ue, window) for ue, window in chosen)
        total = np.zeros(SHARES + 1)
        for at, choice in enumerate(combination):
            own = utilities(kind, speeds(cell, at, choice, pass_s, grid), cell.ues[at].speed_tps)
            total = np.where(back >= 0, total[np.maximum(back, 0)] + own[None, :], -math.inf).max(axis=1)
        best = max(best, float(total[-1]))
    return best
