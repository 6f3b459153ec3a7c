"""Radio weights, windows and modes of all UEs of a cell, decided together.

At a price λ per share of the radio and μ per second of the verifier, the best choice of each UE does not depend on the
others (Lagrange decomposition). λ is where the shares add up to 1; μ is the utility that a longer pass costs all UEs at
the last solution. For the choices that come out, the shares are then divided exactly (`shares.divide`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from testbed.optim.loops.menu import Bools, Menu, MenuAtPass
from testbed.optim.loops.objectives import LATE_WORTH, Objective, Prices
from testbed.optim.loops.rounds import Array, IntArray, RoundChoices, times_s
from testbed.optim.loops.shares import divide, least_shares, log_root
from testbed.optim.loops.state import CellState

TURNS = 2
"""Updates of μ, and of the mean pass."""
MIXES = (0.5, 0.25, 0.75)
"""Shares of the UEs that answer to the last price, of those whose choices differ from the turn before."""
KEEP = 4
"""MenuAtPass of each UE that are weighed after the first turn: the best ones at its prices."""
WIDE, NARROW = 20.0, 1.5
"""Half-widths of the bracket of log λ in the first turn and in the others."""
PRECISION, STEPS = 0.08, 6
"""Largest error of log λ, and largest number of evaluations."""
NO_PRICES = Prices()


class Decision(NamedTuple):
    """What was decided, for the UEs in order."""

    weights: Array
    """[n] φ, radio weights with a mean of 1."""
    windows: IntArray
    """[n] K"""
    modes: IntArray
    """[n] index of the mode among those of the UE."""
    speeds_tps: Array
    """[n] expected token speeds."""
    times_s: Array
    """[n] expected times of rounds."""
    worths: Array
    """[n] what one more token per second is worth, for the order of the batch."""
    value: float
    """The objective."""


class _Solution(NamedTuple):
    columns: IntArray
    kept: Bools
    """UEs whose promise shall be kept."""
    shares: Array
    times_s: Array
    value: float
    scores: Array
    """[n] worths, with the advantage of present choices."""

    @property
    def score(self) -> float:
        """What solutions are compared by."""
        return float(self.scores.sum())


def decide(
    cell: CellState,
    objective: Objective,
    prices: Prices = NO_PRICES,
    weights: Sequence[float] | None = None,
    current: Sequence[tuple[int, int] | None] = (),
    stay: float = 0.04,
) -> Decision:
    """The weights, windows and modes that maximise the objective, nearly: see the module.

    Args:
        weights: [n] radio weights that are given; None: they are decided.
        current: [n] mode and window of each UE until now; None: unknown.
        stay: gain of speed below which a UE's mode and window do not change.
    """
    search = _Search(cell, objective, prices, weights, current, stay)
    return search.decision(search.solved())


class _Search:
    def __init__(
        self,
        cell: CellState,
        objective: Objective,
        prices: Prices,
        weights: Sequence[float] | None,
        current: Sequence[tuple[int, int] | None],
        stay: float,
    ) -> None:
        self.rounds = rounds = RoundChoices(cell)
        self.objective, self.stay = objective, stay
        self.gain = objective.gain(rounds.table, prices)
        self.least = least_shares(rounds.activity)
        self.given = None if weights is None else np.asarray(weights, float)
        known = [(ue, rounds.column(*choice)) for ue, choice in enumerate(current) if choice is not None]
        self.present = np.full(len(cell.ues), -1)
        """Present column of each UE; -1: unknown."""
        self.present[[ue for ue, _ in known]] = [column for _, column in known]
        columns = np.broadcast_to(np.arange(self.gain.shape[1]), self.gain.shape)
        self.menu = Menu(rounds.table, self.gain, columns, rounds.allowed, columns == self.present[:, None])
        self.promises = objective.promises and bool(rounds.promise.any())
        self._log_price = 0.0
        self._half = WIDE

    # ------------------------------------------------------------ prices

    def solved(self) -> _Solution:
        """The best solution over the turns."""
        first = np.where(self.present < 0, self.rounds.middle, self.present)
        turns = [self._settled(first, self.rounds.promise > 0)]
        self._log_price = self._marginal(turns[0])
        for turn in range(TURNS):
            choices = self._choices(turns[-1])
            found = [self._settled(columns, kept) for columns, kept in self._responses(choices)]
            turns.append(max(found, key=lambda one: one.score))
            if turn == 0:
                self.menu = self.menu.best(self._worth(choices), KEEP)
        return max(*turns, *self._between(*turns[-2:]), key=lambda one: one.score)

    def _marginal(self, found: _Solution) -> float:
        """Logarithm of what a larger share is worth: the median over the UEs that send."""
        chosen = self.rounds.table.chosen(found.columns)
        gain = self.gain[np.arange(len(found.columns)), found.columns]
        worths = self.objective.slope(gain, found.times_s) * chosen.air_s * chosen.activity / found.shares**2
        worths = worths[worths > 0]
        return math.log(float(np.median(worths))) if len(worths) else 0.0

    def _between(self, one: _Solution, other: _Solution) -> list[_Solution]:
        """Solutions between those of the last two turns: where equal UEs have equal choices, all of them answer to a
        price, whereas the best may be that some of them do.
        """
        differ = np.flatnonzero(one.columns != other.columns)
        order = differ[np.argsort(one.scores[differ] - other.scores[differ], kind="stable")]
        found: list[_Solution] = []
        for share in MIXES if len(differ) > 1 else ():
            if found and found[0].score < max(one.score, other.score):
                break  # half of them is no better than none or all
            moved = np.isin(np.arange(len(one.columns)), order[: max(1, round(share * len(order)))])
            columns = np.where(moved, other.columns, one.columns)
            found.append(self._settled(columns, np.where(moved, other.kept, one.kept)))
        return found

    def _worth(self, choices: MenuAtPass) -> Array:
        """[n, r] values of the menu's choices at the present price, whether promises are kept or not."""
        values, _ = self._values(choices, self._log_price)
        best: Array = values.reshape(len(values), -1, self.menu.gain.shape[1]).max(axis=1)
        return np.where(self.menu.present, np.inf, best)

    def _choices(self, last: _Solution) -> MenuAtPass:
        """The menu at the mean pass of a solution, and at what a longer pass costs there."""
        rounds, menu = self.rounds, self.menu
        chosen = rounds.table.chosen(last.columns)
        gain = self._counted(self.gain[np.arange(len(last.columns)), last.columns], last.kept)
        pass_s = rounds.pass_s(chosen)
        price = float((chosen.waits * chosen.overlap * self.objective.slope(gain, last.times_s)).sum())
        fixed_s, air_s = rounds.terms(menu.table, pass_s)
        lower = np.broadcast_to(self.least[:, None], fixed_s.shape)
        extra = price * rounds.lengthens(chosen, pass_s) * rounds.joins(menu.table, pass_s) * menu.table.pass_s
        shares = self._given_shares(chosen.activity, menu.table.activity)
        if not self.promises:
            return MenuAtPass(menu.gain, fixed_s, air_s, lower, menu.allowed, extra, menu.present, shares)
        promise = rounds.promise[:, None]
        needed = _needed(menu.table.tokens, fixed_s, air_s, promise)
        fits = np.hstack([menu.allowed & (needed <= 1), menu.allowed & (promise > 0)])
        lower = np.hstack([np.clip(needed, lower, 1.0), lower])
        fixed_s, air_s, extra = (np.hstack([part, part]) for part in (fixed_s, air_s, extra))
        gains = np.hstack([menu.gain, LATE_WORTH * menu.gain])
        if shares is not None:
            shares = np.hstack([shares, shares])
        return MenuAtPass(gains, fixed_s, air_s, lower, fits, extra, np.hstack([menu.present] * 2), shares)

    def _given_shares(self, chosen: Array, activity: Array) -> Array | None:
        """Shares with the given weights, [n, r], if a UE has these activities and the others those of their choices."""
        if self.given is None:
            return None
        sending, present = activity * self.given[:, None], chosen * self.given
        shares: Array = sending / (sending + (present.sum() - present)[:, None])
        return shares

    def _counted(self, gain: Array, kept: Bools) -> Array:
        """[n] gains as they count: broken promises less."""
        if not self.promises:
            return gain
        return np.where(kept | (self.rounds.promise == 0), gain, LATE_WORTH * gain)

    def _responses(self, choices: MenuAtPass) -> list[tuple[IntArray, Bools]]:
        """The UEs' best choices on both sides of the price at which the shares add up to 1."""
        if self.given is not None:
            return [self._respond(choices, None)[:2]]
        sides: dict[bool, tuple[float, IntArray, Bools]] = {}

        def used(log_price: float) -> float:
            columns, kept, total = self._respond(choices, log_price)
            before = sides.get(total > 1)
            if before is None or abs(math.log(total)) < before[0]:
                sides[total > 1] = abs(math.log(total)), columns, kept
            return total

        bracket = self._log_price - self._half, self._log_price + self._half
        self._log_price, self._half = log_root(used, self._log_price, *bracket, PRECISION, STEPS), NARROW
        return [(columns, kept) for _, columns, kept in sides.values()]

    def _respond(self, choices: MenuAtPass, log_price: float | None) -> tuple[IntArray, Bools, float]:
        """Columns, whether promises shall be kept, and the sum of the shares."""
        values, shares = self._values(choices, log_price)
        best, many, ues = values.argmax(axis=1), self.menu.gain.shape[1], np.arange(len(values))
        kept = (best < many) & (self.rounds.promise > 0)
        return self.menu.columns[ues, best % many], kept, float(shares[ues, best].sum())

    def _values(self, choices: MenuAtPass, log_price: float | None) -> tuple[Array, Array]:
        """Values and shares of all choices at a price; None: the shares are given."""
        gain, fixed_s, air_s, lower, fits, extra, present, shares = choices
        price = 0.0
        if shares is not None or log_price is None:
            assert shares is not None
            fits = fits & ((shares >= lower * (1 - 1e-9)) | (lower <= self.least[:, None]))
        else:
            price = math.exp(log_price)
            shares = np.minimum(np.maximum(self.objective.share(gain, fixed_s, air_s, price), lower), 1.0)
        values = self.objective.worth(gain, times_s(fixed_s, air_s, shares))
        stays = present.any()
        if stays:
            values = np.where(present, self.objective.favoured(values, self.stay), values)
        values = values - price * shares - extra
        values[~fits] = -np.inf
        if stays:
            idle = self._idle(values, shares, air_s, log_price is None) & (present & fits).any(axis=1, keepdims=True)
            values[idle & ~present] = -np.inf
        return values, shares

    def _idle(self, values: Array, shares: Array, air_s: Array, given: bool) -> Bools:
        """[n, 1] UEs that are served as little as can be, since they take more of others than they are worth.

        The slowest choice would be the best for them, with the longest messages, which are still on their way when the
        UE is worth serving again.
        """
        best = values.argmax(axis=1)[:, None]
        if given:
            found: Bools = np.take_along_axis(values, best, axis=1) <= 0
            return found & self.objective.idles
        least = np.take_along_axis(shares, best, axis=1) <= self.least[:, None] * (1 + 1e-9)
        sends: Bools = np.take_along_axis(air_s, best, axis=1) > 0
        return least & sends & self.objective.idles

    # ------------------------------------------------------------ choices

    def _settled(self, columns: IntArray, kept: Bools) -> _Solution:
        """The exact solution with these choices: promises that do not fit are given up, the dearest first."""
        rounds, chosen = self.rounds, self.rounds.table.chosen(columns)
        fixed_s, air_s = rounds.terms(chosen, rounds.pass_s(chosen))
        gain = self.gain[np.arange(len(columns)), columns]
        if self.given is not None:
            sending = chosen.activity * self.given
            shares = sending / sending.sum()
        else:
            needed = np.maximum(_needed(chosen.tokens, fixed_s, air_s, rounds.promise), self.least)
            kept = kept & self.promises & (needed <= 1)
            while (lower := np.where(kept, needed, self.least)).sum() > 1:
                kept = kept.copy()
                kept[np.where(kept, needed / np.maximum(gain, 1e-12), -np.inf).argmax()] = False
            shares = divide(self.objective, self._counted(gain, kept), fixed_s, air_s, lower, self._log_price)
        times = times_s(fixed_s, air_s, shares)
        worth = self.objective.worths(gain, chosen.tokens, times, rounds.promise)
        score = np.where(columns == self.present, self.objective.favoured(worth, self.stay), worth)
        return _Solution(columns, kept, shares, times, float(worth.sum()), score)

    def decision(self, found: _Solution) -> Decision:
        """The solution as the loops carry it out."""
        modes, windows = self.rounds.of_column(found.columns)
        chosen = self.rounds.table.chosen(found.columns)
        weights, tokens = found.shares / chosen.activity, chosen.tokens
        slope = self.objective.slope(self.gain[np.arange(len(windows)), found.columns], found.times_s)
        return Decision(
            weights * len(weights) / weights.sum(), windows, modes, tokens / found.times_s, found.times_s,
            slope * found.times_s**2 / tokens, found.value,
        )  # fmt: skip


def _needed(tokens: Array, fixed_s: Array, air_s: Array, promise: Array) -> Array:
    """Share that keeps a promise; above 1: none does."""
    with np.errstate(divide="ignore", invalid="ignore"):
        spare_s = np.where(promise > 0, tokens / promise, np.inf) - fixed_s
        return np.where(spare_s > 0, air_s / spare_s, np.inf)
