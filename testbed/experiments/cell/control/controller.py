"""The controller of a cell: estimates its state, decides, and carries the decision out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.bs.control.messages import Decided, Decisions
from testbed.bs.scheduling.averages import Mean
from testbed.bs.scheduling.window_hints import MEASURED
from testbed.channel.cost import Sizes
from testbed.clock import Clock, within
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.control.estimates import CellEstimates, UeEstimates
from testbed.experiments.cell.control.judgements import LEVELS
from testbed.experiments.cell.control.modes import ahead, judged, round_mode
from testbed.experiments.cell.control.radio import ControlledRadio, RadioMeter
from testbed.experiments.cell.planning import ue_name
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.inputs.coefficients import pass_coefficients
from testbed.experiments.inputs.profile import load_profile
from testbed.optim.loops.joint import Decision, decide
from testbed.optim.loops.objectives import Prices, objective
from testbed.optim.loops.shares import LEAST
from testbed.optim.loops.state import CellState, Measured, UeState
from testbed.protocols import PROTOCOLS
from testbed.protocols.messages import NO_HINT
from testbed.ue.windows.registry import WINDOW_RULES

MARGIN = 1.1
"""Speed that the decision plans for a promise, relative to the promised one: rounds vary around their mean."""
PASSES_S = 1.0
"""Memory of what is measured of the verifier."""
ROUNDS_S = 4.0
"""Memory of the prompts, and of the rounds that were verified and expected."""
UNSERVED = 0.1
"""Weight with which UEs are taken to be in every pass while the base station decodes for them alone, beside what is
measured: nothing is while it does for none."""
START_PASS_S = 0.02
"""Mean pass before any was measured."""
FIRST_WINDOW = 2
"""Window of UEs that are not known yet: a short one, so that their times are known soon."""
MOST_PROMPTS = 0.8
"""Largest share of the verifier's time that counts as that of prompts."""
LEAST_SERVED, LEAST_PASS_S = 0.01, 1e-6
MOST_RATIO = 2.0
"""Largest ratio, either way, of rounds that were verified to those that the last decisions expected."""
LEAST_WORTH = 1e-9
"""Worth of a token that costs more energy than it is worth, for the order of batches."""
OWN_SIZES = Sizes(hidden_size=1)
"""Sizes of messages where a profile has none."""


class _Way(NamedTuple):
    """A way of carrying rounds, between which a controller decides."""

    protocol: str
    threshold: float | None = None
    """θ; None: it is given."""
    lookahead: int | None = None
    """None: it is given."""


class _Counts(NamedTuple):
    """Counters of the base station."""

    time_s: float
    passes: float = 0.0
    busy_s: float = 0.0


class JointController:
    """Decides radio weights, windows, protocols, thresholds, lookahead and the order of batches together, every
    `every_ms` and when responses begin or end.

    Args:
        members: the group of each UE of the cell, by number.
        estimates: of its UEs, up to date.
        decided: has windows, protocols, θ and worths carried out.
        metrics: counters of the base station.
    """

    def __init__(
        self,
        config: CellConfig,
        members: Sequence[UeGroup],
        radio: ControlledRadio,
        estimates: CellEstimates,
        decided: Callable[[Decisions], object],
        metrics: Callable[[], dict[str, Any]],
        clock: Clock,
    ) -> None:
        self._config, self._members, self._radio = config, members, radio
        self._estimates, self._decided, self._metrics, self._clock = estimates, decided, metrics, clock
        self._numbers = [number for number, group in enumerate(members) if group.traffic == "tokens"]
        self._meter = RadioMeter(radio, self._numbers, oracle=config.control.csi == "oracle")
        self._passes = pass_coefficients(load_profile(config.bs.profile).verify)
        by_group = {group.name: self._ways_of(group) for group in members}
        self._ways = [by_group[group.name] for group in members]
        self._rtt_s = config.radio.rtt_s
        self._profiles = {group.profile: load_profile(group.profile) for group in members}
        self._busy = Mean(PASSES_S)
        self._rounds = dict.fromkeys(self._numbers, 0)
        self._expected_hz = dict[int, float]()
        """Rounds per second that the last decision expects of the UEs that draft."""
        self._verified, self._expected = Mean(ROUNDS_S), Mean(ROUNDS_S)
        """Rounds per second."""
        self._before, self._pass_s = _Counts(clock.time()), Mean(PASSES_S, START_PASS_S)
        self._prompts = Mean(ROUNDS_S)
        """Share of the time."""
        self._served, self._silent = Mean(PASSES_S), set[int]()
        """UEs for which the base station decoded alone at the last step."""
        self._tallies: Sequence[UeTally] = ()

    async def run(self, tallies: Sequence[UeTally]) -> None:
        """Decide until cancelled; changes of windows, protocols and θ are counted in the tallies of the UEs."""
        changed = asyncio.Event()
        self._tallies, self._estimates.changed = tallies, changed.set
        self._decided(Decisions({}, self._first))
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._config.control.every_ms / 1e3, changed.wait())
            changed.clear()
            self._step()

    def _step(self) -> None:
        """Estimate, decide, and carry out."""
        self._measure()
        known = ((number, self._estimates.ues.get(ue_name(number))) for number in self._numbers)
        active = [(number, ue) for number, ue in known if ue is not None and ue.sessions and ue.mean_window.value]
        if active:
            self._carry_out(active, self._decision(active))

    # ------------------------------------------------------------ state

    def _measure(self) -> None:
        """Update rates, what is sent, and what is measured of the verifier."""
        metrics, before = self._metrics(), self._before
        now = self._before = _Counts(self._clock.time(), metrics["passes"], metrics["busy_s"])
        passed_s, passes = now.time_s - before.time_s, now.passes - before.passes
        self._meter.update(now.time_s, passed_s)
        if passes > 0:
            self._pass_s.add((now.busy_s - before.busy_s) / passes, passed_s)
        if passed_s > 0:
            prompts, self._estimates.prompts = self._estimates.prompts, []
            self._prompts.add(sum(self._passes.share_s(*one) for one in prompts) / passed_s, passed_s)
            self._busy.add(min(1.0, (now.busy_s - before.busy_s) / passed_s), passed_s)
        self._count_rounds(passed_s, passes)

    def _count_rounds(self, passed_s: float, passes: float) -> None:
        """Compare the rounds since the last step with what was expected, and those of UEs for which the BS decodes
        alone with the passes.
        """
        known = {number: self._estimates.ues.get(ue_name(number)) for number in self._numbers}
        silent = {number for number, ue in known.items() if ue is not None and ue.window == 0}
        self._served.add(1.0, UNSERVED * passed_s)
        verified = expected = 0.0
        for number, ue in known.items():
            rounds = 0 if ue is None else ue.rounds
            done, self._rounds[number] = rounds - self._rounds[number], rounds
            if ue is None or not ue.sessions:
                continue
            if number in self._expected_hz:
                verified, expected = verified + done, expected + self._expected_hz[number] * passed_s
            elif passes > 0 and number in silent and number in self._silent:
                self._served.add(min(1.0, done / passes), passed_s / len(silent))
        if passed_s > 0 and expected > 0:
            self._verified.add(verified / passed_s, passed_s)
            self._expected.add(expected / passed_s, passed_s)
        self._silent = silent

    def _state(self, number: int, ue: UeEstimates) -> UeState:
        group, power, most = self._members[number], self._members[number].power, self._members[number].window
        profile = self._profiles[group.profile]
        sizes, acceptance = profile.sizes or OWN_SIZES, ue.acceptance(most)
        modes = [
            ahead(
                judged(
                    round_mode(way.protocol, acceptance, sizes, profile.overheads, ue.asked.value),
                    ue.judgements,
                    way.threshold,
                ),
                ue.judgements,
                group.lookahead == 1 if way.lookahead is None else bool(way.lookahead),
            )
            for way in self._ways[number]
        ]
        least = 1 if ue.measured < MEASURED or PROTOCOLS[group.protocol].replaces else 0
        rate_bps = self._meter.rate_bps(number)
        draft_s = ue.draft_s or profile.draft.window_s(most, 1) / most
        return UeState(
            rate_bps=rate_bps,
            draft_s=draft_s,
            link_s=self._rtt_s,
            modes=tuple(modes),
            windows=(least, most) if self._hinted(group) else (ue.present, ue.present),
            speed_tps=group.class_tps and MARGIN * group.class_tps,
            weight=self._weight(number),
            cached=ue.cached,
            extra=ue.extra.value,
            draft_j=power.draft_w * ue.draft_s if power else 0.0,
            bit_j=power.transmit_w / rate_bps if power and rate_bps > 0 else 0.0,
        )

    def _weight(self, number: int) -> float:
        """Radio weight of a UE until now."""
        return self._radio.ports[number][True].weight if self._config.radio.weighted else 1.0

    @property
    def _measured(self) -> Measured:
        """What is measured of the cell."""
        expected = self._expected.value
        ratio = self._verified.value / expected if expected else 1.0
        rounds = min(MOST_RATIO, max(1 / MOST_RATIO, ratio))
        return Measured(max(LEAST_PASS_S, self._pass_s.value), self._meter.sending, rounds)

    @property
    def _waits(self) -> float:
        """Passes that a round stays: as measured; before, its own, and half of the one before while the BS is busy."""
        stay_s = self._estimates.stay_s.value
        if not stay_s:
            return 1 + self._busy.value / 2
        return max(1.0, stay_s / max(self._pass_s.value, LEAST_PASS_S))

    @property
    def _first(self) -> int:
        return FIRST_WINDOW if self._config.control.windows == "joint" else NO_HINT

    def _hinted(self, group: UeGroup) -> bool:
        return self._config.control.windows == "joint" and WINDOW_RULES[group.window_rule].hinted

    def _ways_of(self, group: UeGroup) -> list[_Way]:
        """Ways between which to choose. Protocols are that of the sessions and, if decided, the one beside it."""
        control, kinds = self._config.control, [group.protocol]
        if control.protocol == "joint" and group.protocol_hints:
            kinds.append(PROTOCOLS[group.protocol].beside)
        most = group.most_threshold
        levels = [share * most for share in LEVELS] if control.threshold == "joint" and most else [None]
        aheads = [0, 1] if control.lookahead == "joint" and group.lookahead_hints else [None]
        return [_Way(*parts) for parts in product(kinds, levels, aheads)]

    def _current(self, number: int, ue: UeEstimates) -> tuple[int, int] | None:
        """Mode and window of a UE until now; None: nothing was decided."""
        if ue.window is None and not ue.mode and ue.threshold is None and ue.lookahead is None:
            return None
        group = self._members[number]
        ways, way = self._ways[number], _Way(ue.mode or group.protocol, ue.threshold, ue.lookahead)
        mode = ways.index(way) if way in ways else 0
        return mode, ue.present if ue.window is None else ue.window

    # ------------------------------------------------------------ decision

    def _decision(self, active: Sequence[tuple[int, UeEstimates]]) -> Decision:
        control = self._config.control
        ues = [self._state(number, ue) for number, ue in active]
        served = max(LEAST_SERVED, self._served.value)
        state = CellState(
            ues, self._passes, self._waits, self._measured, min(MOST_PROMPTS, self._prompts.value), served
        )
        return decide(
            state, objective(control.objective),
            Prices(joule=control.joule_tokens, risk=control.risk_tokens),
            weights=None if control.weights == "joint" else [ue.weight for ue in ues],
            current=[self._current(number, ue) for number, ue in active],
        )  # fmt: skip

    def _carry_out(self, active: Sequence[tuple[int, UeEstimates]], decision: Decision) -> None:
        control, found = self._config.control, dict[bytes, Decided]()
        times_s = zip(active, decision.times_s.tolist(), decision.windows.tolist(), strict=True)
        self._expected_hz = {number: 1 / time_s for (number, _), time_s, window in times_s if window}
        weights = decision.weights.clip(min=LEAST)
        columns = (part.tolist() for part in (decision.windows, decision.modes, weights, self._worths(decision)))
        for (number, ue), window, mode, weight, worth in zip(active, *columns, strict=True):
            if control.weights == "joint":
                self._radio.ports[number][True].weight = weight
            group, before = self._members[number], (ue.window, ue.mode, ue.threshold, ue.lookahead)
            kind, ue.threshold, ue.lookahead = self._ways[number][mode]
            ue.window = window if self._hinted(group) else None
            ue.mode = kind if control.protocol == "joint" and group.protocol_hints else ""
            now = ue.window, ue.mode, ue.threshold, ue.lookahead
            if any(old not in (None, "", new) for old, new in zip(before, now, strict=True)):
                self._tallies[number].switched()
            hinted, shown = NO_HINT if ue.window is None else ue.window, weight if control.weights == "joint" else None
            further = NO_HINT if ue.lookahead is None else ue.lookahead
            found[ue_name(number)] = Decided(hinted, ue.mode, worth, shown, ue.threshold, further)
        self._decided(Decisions(found, self._first))

    def _worths(self, decision: Decision) -> NDArray[np.float64]:
        """Worth of a token of each UE for the order of batches, relative to their mean; 1 where that is not decided."""
        if self._config.control.order != "joint":
            return np.ones(len(decision.worths))
        worths: NDArray[np.float64] = np.maximum(decision.worths, LEAST_WORTH)
        return worths / float(worths.mean())
