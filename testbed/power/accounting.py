"""Energy of rounds and of their parts, out of samples of power.

Power between two samples is taken to change evenly (trapezoids), or, where samples are means of energy counters, to be
the later one's. Energy up to any instant is therefore known in closed form, and a part's energy is a difference of two
such values: parts of a round add up to the round, and rounds to the run, but for rounding. Instants at which several
rounds are under way share their power evenly. Between samples that lie too far apart, and beyond the first and the
last, power is not known: nothing is added there, and the time is counted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.power.reading import joined
from testbed.power.series import Reals, Samples


class Integral:
    """Energy since the first sample, at any instant."""

    def __init__(self, samples: Samples) -> None:
        self._time_s, power_w = samples.time_s, samples.total_w
        steps_s = np.diff(self._time_s)
        self._known = steps_s <= samples.gap_s
        begin_w = power_w[1:] if samples.mean else power_w[:-1]
        self._begin_w, self._slope = begin_w, (power_w[1:] - begin_w) / steps_s
        self._energy_j = np.concatenate([[0.0], np.cumsum(self._within(np.arange(len(steps_s)), steps_s))])
        self._gaps_s = np.concatenate([[0.0], np.cumsum(np.where(self._known, 0.0, steps_s))])

    def energy_j(self, at_s: Reals) -> Reals:
        """Energy from the first sample to instants [m], in J; unknown power counts as none."""
        step, past_s = self._place(at_s)
        found: Reals = self._energy_j[step] + self._within(step, past_s)
        return found

    def unknown_s(self, at_s: Reals) -> Reals:
        """Time without known power from the first sample to instants [m]; below 0 before it."""
        step, past_s = self._place(at_s)
        inside = self._gaps_s[step] + np.where(self._known[step], 0.0, past_s)
        beyond = np.maximum(at_s - self._time_s[-1], 0.0) + np.minimum(at_s - self._time_s[0], 0.0)
        found: Reals = inside + beyond
        return found

    def _place(self, at_s: Reals) -> tuple[NDArray[np.intp], Reals]:
        """The step [m] that an instant lies in, and how far."""
        step = np.clip(np.searchsorted(self._time_s, at_s, side="right") - 1, 0, len(self._known) - 1)
        steps_s = self._time_s[step + 1] - self._time_s[step]
        return step, np.clip(at_s - self._time_s[step], 0.0, steps_s)

    def _within(self, step: NDArray[np.intp], past_s: Reals) -> Reals:
        energy_j: Reals = past_s * (self._begin_w[step] + self._slope[step] * past_s / 2)
        return np.where(self._known[step], energy_j, 0.0)


class Spans(NamedTuple):
    """When rounds did what, on the clock of the samples; all [n].

    A round drafts from `begin_s` to `drafted_s`, and waits from `sent_s` to `verdict_s`. When within that its bytes
    were under way and when the BS worked, a UE cannot see; it knows how long both took, and so the energy of the wait
    is divided in proportion.
    """

    begin_s: Reals
    drafted_s: Reals
    sent_s: Reals
    verdict_s: Reals
    end_s: Reals
    link_share: Reals
    """Of the wait: the link."""
    bs_share: Reals
    """Of the wait: queue, verification and judgement."""

    def check(self) -> None:
        """Raises:
        BadInput: instants of a round that do not follow one another, or shares that are none.
        """
        instants = np.stack(self[:5])
        if not np.isfinite(instants).all() or (np.diff(instants, axis=0) < 0).any():
            raise BadInput("the instants of a round must follow one another")
        shares = np.stack([self.link_share, self.bs_share])
        if not np.isfinite(shares).all() or (shares < 0).any() or (shares.sum(axis=0) > 1 + 1e-9).any():
            raise BadInput("the shares of a wait lie between 0 and 1")


class Account(NamedTuple):
    """Energy of rounds, all [n]; the four parts add up to `energy_j`."""

    energy_j: Reals
    draft_j: Reals
    link_j: Reals
    """Waiting while bytes were under way."""
    wait_j: Reals
    """Waiting while the BS queued, verified and judged."""
    other_j: Reals
    """Encoding, answering for hidden states, and committing."""
    unknown_s: Reals
    """Time of the round in which power is not known; its energy is too small by that."""


def account(samples: Samples, spans: Spans) -> Account:
    """Energy of rounds and of their parts.

    Raises:
        BadInput: see `Spans.check`.
    """
    spans.check()
    integral = Integral(samples)
    edges_s = np.unique(np.concatenate(spans[:5]))
    if not len(edges_s):
        none = np.zeros(0)
        return Account(none, none, none, none, none, none)
    begun = np.searchsorted(np.sort(spans.begin_s), edges_s, side="right")
    ended = np.searchsorted(np.sort(spans.end_s), edges_s, side="right")
    under_way = np.maximum(begun - ended, 1)[:-1]
    shared_j = np.concatenate([[0.0], np.cumsum(np.diff(integral.energy_j(edges_s)) / under_way)])

    def energy_j(from_s: Reals, to_s: Reals) -> Reals:
        found: Reals = shared_j[np.searchsorted(edges_s, to_s)] - shared_j[np.searchsorted(edges_s, from_s)]
        return found

    waited_j = energy_j(spans.sent_s, spans.verdict_s)
    link_j, wait_j = waited_j * spans.link_share, waited_j * spans.bs_share
    aside_j = energy_j(spans.drafted_s, spans.sent_s) + energy_j(spans.verdict_s, spans.end_s)
    return Account(
        energy_j(spans.begin_s, spans.end_s),
        energy_j(spans.begin_s, spans.drafted_s),
        link_j,
        wait_j,
        aside_j + (waited_j - link_j - wait_j),
        integral.unknown_s(spans.end_s) - integral.unknown_s(spans.begin_s),
    )


def heat(samples: Samples, begin_s: Reals, end_s: Reals) -> tuple[Reals, list[str | None]]:
    """The hottest temperature of rounds [n], nan where it is not known, and why the device ran slower during them, as
    `Reading.throttled` has it. The samples of a round are those within it and the last one before.
    """
    first = np.maximum(np.searchsorted(samples.time_s, begin_s, side="right") - 1, 0)
    last = np.searchsorted(samples.time_s, end_s, side="right")
    temps, reasons = np.full(len(begin_s), np.nan), []
    for i, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        known = samples.temp_c[a:b] if samples.temp_c is not None else np.zeros(0)
        known = known[~np.isnan(known)]
        temps[i] = known.max() if len(known) else np.nan
        said = [reason for reason in (samples.throttled or ())[a:b] if reason is not None]
        reasons.append(joined(part for reason in said for part in reason.split("+")) if said else None)
    return temps, reasons


def mean_w(samples: Samples, from_s: float, to_s: float) -> float | None:
    """Mean power between two instants; None where less than half of it is known."""
    integral, ends = Integral(samples), np.array([from_s, to_s])
    known_s = (to_s - from_s) - float(np.diff(integral.unknown_s(ends))[0])
    return float(np.diff(integral.energy_j(ends))[0]) / known_s if known_s > (to_s - from_s) / 2 else None
