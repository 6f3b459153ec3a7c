"""Energy of rounds and of their parts, from samples of power.

Power is interpolated linearly between samples (trapezoidal rule); if samples are means of energy counters, the later
sample holds for the whole step. The energy up to any instant then has a closed form, and the energy of a part is a
difference of two values: the parts of a round add up to the round, and rounds to the run, except for rounding.
Concurrent rounds share the power equally. In gaps between samples, and before the first and after the last one, power
is unknown: no energy is added, and the time is counted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.power.reading import joined
from testbed.power.series import Reals, Samples


class Integral:
    """Integral of power since the first sample."""

    def __init__(self, samples: Samples) -> None:
        self._time_s, power_w = samples.time_s, samples.total_w
        steps_s = np.diff(self._time_s)
        self._known = steps_s <= samples.gap_s
        begin_w = power_w[1:] if samples.mean else power_w[:-1]
        self._begin_w, self._slope = begin_w, (power_w[1:] - begin_w) / steps_s
        self._energy_j = np.concatenate([[0.0], np.cumsum(self._within(np.arange(len(steps_s)), steps_s))])
        self._gaps_s = np.concatenate([[0.0], np.cumsum(np.where(self._known, 0.0, steps_s))])

    def energy_j(self, at_s: Reals) -> Reals:
        """Energy [J] from the first sample to instants [m]; unknown power counts as 0."""
        step, past_s = self._place(at_s)
        found: Reals = self._energy_j[step] + self._within(step, past_s)
        return found

    def unknown_s(self, at_s: Reals) -> Reals:
        """Seconds of unknown power from the first sample to instants [m]; negative before it."""
        step, past_s = self._place(at_s)
        inside = self._gaps_s[step] + np.where(self._known[step], 0.0, past_s)
        beyond = np.maximum(at_s - self._time_s[-1], 0.0) + np.minimum(at_s - self._time_s[0], 0.0)
        found: Reals = inside + beyond
        return found

    def _place(self, at_s: Reals) -> tuple[NDArray[np.intp], Reals]:
        """Step [m] that contains each instant, and the time since its start."""
        step = np.clip(np.searchsorted(self._time_s, at_s, side="right") - 1, 0, len(self._known) - 1)
        steps_s = self._time_s[step + 1] - self._time_s[step]
        return step, np.clip(at_s - self._time_s[step], 0.0, steps_s)

    def _within(self, step: NDArray[np.intp], past_s: Reals) -> Reals:
        energy_j: Reals = past_s * (self._begin_w[step] + self._slope[step] * past_s / 2)
        return np.where(self._known[step], energy_j, 0.0)


class Spans(NamedTuple):
    """Instants of rounds on the clock of the samples; all [n].

    A round drafts from `begin_s` to `drafted_s` and waits from `sent_s` to `verdict_s`. The UE knows how long the link
    and the BS took within the wait, but not when; the energy of the wait is divided in proportion.
    """

    begin_s: Reals
    drafted_s: Reals
    sent_s: Reals
    verdict_s: Reals
    end_s: Reals
    link_share: Reals
    """Share of the wait spent on the link."""
    bs_share: Reals
    """Share of the wait spent in the BS's queue, verification and judging."""

    def check(self) -> None:
        """Check the values.

        Raises:
            BadInput: instants of a round out of order, or shares outside [0, 1].
        """
        instants = np.stack(self[:5])
        if not np.isfinite(instants).all() or (np.diff(instants, axis=0) < 0).any():
            raise BadInput("the instants of a round must be in order")
        shares = np.stack([self.link_share, self.bs_share])
        if not np.isfinite(shares).all() or (shares < 0).any() or (shares.sum(axis=0) > 1 + 1e-9).any():
            raise BadInput("the shares of a wait must lie in [0, 1], and so must their sum")


class Account(NamedTuple):
    """Energy of rounds in J, all [n]; the four parts add up to `energy_j`."""

    energy_j: Reals
    draft_j: Reals
    link_j: Reals
    """Waiting for the link."""
    wait_j: Reals
    """Waiting for the BS: queue, verification and judging."""
    other_j: Reals
    """Encoding, sending requested hidden states, and committing."""
    unknown_s: Reals
    """Seconds of the round with unknown power, whose energy is missing."""


def account(samples: Samples, spans: Spans) -> Account:
    """Compute the energy of rounds and of their parts.

    Raises:
        BadInput: as `Spans.check`.
    """
    spans.check()
    integral = Integral(samples)
    edges_s = np.unique(np.concatenate(spans[:5]))
    if not len(edges_s):
        none = np.zeros(0)
        return Account(none, none, none, none, none, none)
    shared_j = _divided(integral.energy_j(edges_s), edges_s, spans.begin_s, spans.end_s)

    def energy_j(from_s: Reals, to_s: Reals) -> Reals:
        found: Reals = shared_j[np.searchsorted(edges_s, to_s)] - shared_j[np.searchsorted(edges_s, from_s)]
        return found

    waited_j = energy_j(spans.sent_s, spans.verdict_s)
    link_j, wait_j = waited_j * spans.link_share, waited_j * spans.bs_share
    other_j = energy_j(spans.drafted_s, spans.sent_s) + energy_j(spans.verdict_s, spans.end_s)
    return Account(
        energy_j(spans.begin_s, spans.end_s),
        energy_j(spans.begin_s, spans.drafted_s),
        link_j,
        wait_j,
        other_j + (waited_j - link_j - wait_j),
        integral.unknown_s(spans.end_s) - integral.unknown_s(spans.begin_s),
    )


def shared_s(begin_s: Reals, end_s: Reals) -> Reals:
    """Durations of rounds [n], with time divided among concurrent rounds as their energy is."""
    edges_s = np.unique(np.concatenate([begin_s, end_s]))
    if not len(edges_s):
        return np.zeros(0)
    until_s = _divided(edges_s, edges_s, begin_s, end_s)
    found: Reals = until_s[np.searchsorted(edges_s, end_s)] - until_s[np.searchsorted(edges_s, begin_s)]
    return found


def _divided(amounts: Reals, edges_s: Reals, begin_s: Reals, end_s: Reals) -> Reals:
    """Part of a cumulative amount [m] at instants [m] for each of the rounds that are in progress."""
    begun = np.searchsorted(np.sort(begin_s), edges_s, side="right")
    ended = np.searchsorted(np.sort(end_s), edges_s, side="right")
    concurrent = np.maximum(begun - ended, 1)[:-1]
    return np.concatenate([[0.0], np.cumsum(np.diff(amounts) / concurrent)])


def heat(samples: Samples, begin_s: Reals, end_s: Reals) -> tuple[Reals, list[str | None]]:
    """Highest temperature [°C] of rounds [n], nan if unknown, and the reasons for throttling as in `Reading.throttled`.

    The samples of a round are those within it and the last one before.
    """
    first = np.maximum(np.searchsorted(samples.time_s, begin_s, side="right") - 1, 0)
    last = np.searchsorted(samples.time_s, end_s, side="right")
    temps, reasons = np.full(len(begin_s), np.nan), []
    for i, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        known = samples.temp_c[a:b] if samples.temp_c is not None else np.zeros(0)
        known = known[~np.isnan(known)]
        temps[i] = known.max() if len(known) else np.nan
        given = [reason for reason in (samples.throttled or ())[a:b] if reason is not None]
        reasons.append(joined(part for reason in given for part in reason.split("+")) if given else None)
    return temps, reasons


def mean_w(samples: Samples, from_s: float, to_s: float) -> float | None:
    """Mean power between two instants; None if it is known for less than half of the time."""
    integral, ends = Integral(samples), np.array([from_s, to_s])
    known_s = (to_s - from_s) - float(np.diff(integral.unknown_s(ends))[0])
    return float(np.diff(integral.energy_j(ends))[0]) / known_s if known_s > (to_s - from_s) / 2 else None
