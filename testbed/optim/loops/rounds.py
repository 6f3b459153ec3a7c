"""Model of the rounds of a cell: what each choice of mode and window costs a UE, and how long its rounds take.

Symbols of UE i with window K in some mode: E tokens committed per round, A time of drafting and of round trips, c time
on an uplink of its own (bits over rate), q share of its time with data for the uplink, s its part of a pass, p its
rounds per pass, φ its radio weight.

UEs share the uplink in proportion to their weights, those that have data (discriminatory processor sharing). While UE i
sends, it finds UE j sending with probability q_j (Bard and Schweitzer's approximation), so that it is on the air for

    c·(1 + Σ_{j≠i} q_j·φ_j / φ_i) = c·(1 − q_i) + c·q_i / z_i        with z_i = q_i·φ_i / Σ_j q_j·φ_j, Σ z = 1.

q = 1 for all is a band divided into fixed shares z, as in edge-SD.

q and p are given, or follow from what is measured of the cell at its mean pass: the mean sum Φ of the weights of
UEs that have data, and the ratio κ of rounds to those expected. With R for all but the uplink, the mean activity
q' = Φ / Σ φ, and σ = 1 − q' + Φ/φ, a choice has q = σ·c/(R + σ·c), and p = κ·P/(R + σ·c).

A pass takes P = (c_0 + Σ p_i·s_i) / (1 − f) (WISP eq. 19 at the mean pass; prompts take the share f of the time). A
round stays for h passes and, unless it is in every pass, is in its own: W = h·P + (1 − p_i)·s_i. So

    T_i = A + c·(1 − q) + (1 − p)·s + h·P + c·q / z = a + k / z,      speed v_i = E / T_i.

With lookahead the next window is valid with probability h = α^K·g (`optim.draft_window.lookahead`). With D = (K + 1)·d
for drafting it and R for the rest of a round, a window takes (1 − h)·K·d + (h·D + R)/(1 + h) on average if D ≤ R, else
(1 − h)·(K·d + R) + h·D, which is the larger one then; the choice between them knows of R the round trips and the time
at the BS. A void window follows each miss: bits and drafted tokens are those of 2 − h windows, and the air takes
c·(1/(1 + h) + 1 − h).

With window 0 the BS decodes alone: p of the passes yield a token, all of them unless the scheduler leaves requests
waiting, so that E = 1, h = 1/p, A = c = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.optim.loops.state import LEAST_BPS, CellState

PASS_STEPS = 4
"""Steps towards the fixed point of the mean pass and the rounds per pass."""
LONGER, LEAST_ROOM = 1.05, 0.2
"""Factor by which a pass is made longer to see how many more rounds join it, and least share of what is added that is
not added again by these rounds."""
LEAST_S = 1e-6
"""Least time of a round."""
LEAST_ACTIVITY = 1e-4
"""Least q."""
Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class RoundTable(NamedTuple):
    """Costs of all choices, [n, m]: column `mode`·(K_max + 1) + `window` of UE i, or [n]: of one choice of each."""

    tokens: Array
    """E"""
    fixed_s: Array
    """A; with lookahead, where R hides the drafting of the next window"""
    air_s: Array
    """c"""
    pass_s: Array
    """s"""
    joules: Array
    risk: Array
    """Expected risk per round."""
    joins: Array
    """p"""
    activity: Array
    """q"""
    waits: Array
    """h"""
    overlap: Array
    """Factor of the time at the BS: 1/(1 + h) with lookahead, since two windows are on their way at a time."""
    drafting_s: Array
    drafting_overlap: Array
    """A and the factor where drafting takes longer than R; the same as the others without lookahead."""
    round_s: Array
    """R + σ·c at the measured pass; 0 where p is given."""

    def chosen(self, columns: IntArray) -> RoundTable:
        """One choice of each UE."""
        at = np.arange(len(columns)), columns
        return RoundTable(*(part[at] for part in self))


class RoundChoices:
    """The choices of the UEs of a cell, and the time of their rounds."""

    def __init__(self, cell: CellState) -> None:
        ues = cell.ues
        low, high = (np.array([ue.windows[end] for ue in ues]) for end in (0, 1))
        self.most, self.modes = int(high.max()), max(len(ue.modes) for ue in ues)
        self.width = self.most + 1
        window = np.arange(self.width)
        fits = (window >= low[:, None]) & (window <= high[:, None])
        given = np.arange(self.modes) < np.array([len(ue.modes) for ue in ues])[:, None]
        self.middle: IntArray = (low + high + 1) // 2
        """[n] columns of windows in the middle, in the first mode."""
        self.allowed = (given[:, :, None] & fits[:, None, :]).reshape(len(ues), -1)
        columns = [(ue.activity, ue.joins, ue.weight, ue.speed_tps or 0.0) for ue in ues]
        self.activity, joins, weights, self.promise = _rows(columns).T.copy()
        self.measured, stretch = cell.measured, weights
        self._begin_s, self._free = cell.passes.c, 1 - cell.prompts
        if self.measured is not None:
            mean = self.measured.sending / weights.sum()
            self.activity[:] = min(1.0, max(LEAST_ACTIVITY, mean))
            stretch = 1 - self.activity + self.measured.sending / weights
        self.table = self._table(cell, joins, stretch, window.astype(np.float64))

    def _table(self, cell: CellState, joins: Array, stretch: Array, window: Array) -> RoundTable:
        ues, times, count = cell.ues, cell.passes, self.modes
        modes = [(*ue.modes, *[ue.modes[0]] * (count - len(ue.modes))) for ue in ues]
        flat = [mode for each in modes for mode in each]
        values = _rows([mode[2:] for mode in flat]).reshape(len(ues), count, -1)
        token, fixed, asked, asked_bits, _, risk, ahead, most_guess = (
            values[:, :, at, None] for at in range(values.shape[2])
        )
        drafts = window > 0
        alpha = _by_position([mode.acceptance for mode in flat], self.width).reshape(len(ues), count, -1)
        known = [(u.backlog_bits, u.draft_s, u.link_s, u.rate_bps, u.cached, u.extra, u.draft_j, u.bit_j) for u in ues]
        columns = _rows(known).T[:, :, None, None]
        backlog, draft_s, link_s, rate, cached, extra, draft_j, bit_j = columns
        bits = (backlog + fixed) * drafts + window * (token + asked * asked_bits)
        trips = (2 - (1 - asked) ** window) * drafts
        new = window + 1 + extra
        whole = np.cumprod(alpha, axis=2)
        tokens = np.cumsum(whole, axis=2)
        hit = np.zeros(1)
        if ahead.any():
            guess = np.minimum(np.concatenate([alpha[:, :, 1:], alpha[:, :, -1:]], axis=2), most_guess)
            hit = ahead * drafts * whole * guess
        missed, overlap, void = 1 - hit, 1 / (1 + hit), ahead * drafts * (1 - hit)
        own_s, further_s = window * draft_s, hit * (window + 1) * draft_s
        hidden_s = missed * own_s + (further_s + trips * link_s) * overlap
        drafting_s = missed * (own_s + trips * link_s) + further_s
        air_s = bits / np.maximum(rate, LEAST_BPS) * (overlap + void)
        joins, activity, round_s = joins[:, None, None], self.activity[:, None, None], np.zeros(1)
        if self.measured is not None:
            at_bs_s, sent_s = cell.waits * self.measured.pass_s, stretch[:, None, None] * air_s
            rest_s = np.maximum(hidden_s + at_bs_s * overlap, drafting_s + at_bs_s * missed)
            round_s = np.maximum(rest_s + sent_s, LEAST_S)
            joins = np.minimum(self.measured.rounds * self.measured.pass_s / round_s, 1.0)
            activity = np.where(drafts, np.maximum(sent_s / round_s, LEAST_ACTIVITY), activity)
        reached = np.concatenate([np.zeros_like(tokens[:, :, :1]), tokens[:, :, :-1]], axis=2)
        parts = (
            tokens,
            hidden_s,
            air_s,
            (times.a + times.b_compute * (cached + new)) * new + times.b_read * cached,
            (window * draft_j + bits * bit_j) * (1 + void),
            reached * risk,
            np.where(drafts, joins, cell.served),
            activity,
            np.where(drafts, cell.waits, 1 / cell.served),
            overlap,
            drafting_s,
            missed,
            round_s * drafts,
        )
        shape = (len(ues), count, len(window))
        return RoundTable(*(np.broadcast_to(part, shape).reshape(len(ues), -1) for part in parts))

    def pass_s(self, chosen: RoundTable) -> float:
        """P: the mean pass with these choices, [n]; where p depends on it, their fixed point."""
        found = self._begin_s if self.measured is None else max(self.measured.pass_s, self._begin_s)
        for _ in range(1 if self.measured is None else PASS_STEPS):
            found = self.with_prompts(float(self.joins(chosen, found) @ chosen.pass_s))
        return found

    def with_prompts(self, work_s: float) -> float:
        """A pass with `work_s` for rounds."""
        return (self._begin_s + work_s) / self._free

    def lengthens(self, chosen: RoundTable, pass_s: float) -> float:
        """Growth of P [s] per second that is added to a pass of `pass_s`, with these choices, [n]. It is 1 or more,
        since UEs have rounds in more of the passes when passes are longer.
        """
        if self.measured is None:
            return 1 / self._free
        before, after = (float(self.joins(chosen, factor * pass_s) @ chosen.pass_s) for factor in (1.0, LONGER))
        return 1 / max(LEAST_ROOM, self._free - (after - before) / ((LONGER - 1) * pass_s))

    def joins(self, table: RoundTable, pass_s: float) -> Array:
        """p at a mean pass, in the table's shape: the rest of a round does not depend on it."""
        if self.measured is None:
            return table.joins
        round_s = table.round_s + table.waits * table.overlap * (pass_s - self.measured.pass_s)
        found = np.minimum(self.measured.rounds * pass_s / np.maximum(round_s, LEAST_S), 1.0)
        return np.where(table.round_s > 0, found, table.joins)

    def terms(self, table: RoundTable, pass_s: float) -> tuple[Array, Array]:
        """a and k of the time a + k/z of a round, in the table's shape."""
        at_bs_s = (1 - self.joins(table, pass_s)) * table.pass_s + table.waits * pass_s
        drafting_s = table.drafting_s + at_bs_s * table.drafting_overlap
        rest_s = np.maximum(table.fixed_s + at_bs_s * table.overlap, drafting_s)
        return rest_s + table.air_s * (1 - table.activity), table.air_s * table.activity

    def column(self, mode: int, window: int) -> int:
        """Column of a mode and a window."""
        return mode * self.width + min(window, self.most)

    def of_column(self, columns: IntArray) -> tuple[IntArray, IntArray]:
        """Modes and windows of columns."""
        return columns // self.width, columns % self.width


def times_s(fixed_s: Array, air_s: Array, shares: Array) -> Array:
    """a + k/z; infinite where something is to be sent and the share is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = fixed_s + np.where(air_s > 0, air_s / shares, 0.0)
    return found


def _rows(rows: Sequence[Sequence[float]]) -> Array:
    """Rows of the same length as an array: in half the time that numpy takes for nested sequences."""
    return np.fromiter(chain.from_iterable(rows), np.float64).reshape(len(rows), -1)


def _by_position(acceptance: Sequence[tuple[float, ...]], width: int) -> Array:
    """[len(acceptance), width] rates of the positions from 1 on, behind a 1 for window 0."""
    most = max(map(len, acceptance))
    known = _rows([rates + rates[-1:] * (most - len(rates)) for rates in acceptance])
    positions = np.minimum(np.arange(width - 1), most - 1)
    return np.hstack([np.ones((len(known), 1)), known[:, positions]])
