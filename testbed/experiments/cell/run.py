"""A cell in virtual time: groups of UEs, one radio, one base station; or several such cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from testbed.bs.control.hints import DecidedHints
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.control.controller import JointController
from testbed.experiments.cell.control.estimates import CellEstimates
from testbed.experiments.cell.csi import RadioChannel, ue_state
from testbed.experiments.cell.parts.computed import ComputedPair, computed_pair
from testbed.experiments.cell.parts.counting import CellRun, Clear, Site, Snapshot, counted, grouped, site_work, ue_work
from testbed.experiments.cell.parts.decoding import DecodingUes
from testbed.experiments.cell.parts.station import base_station
from testbed.experiments.cell.planning import read_plan, ue_name
from testbed.experiments.cell.several.network import Network
from testbed.experiments.cell.several.workers import Spread
from testbed.experiments.cell.tally import Counted, UeTally, Watch, unwatched
from testbed.experiments.cell.ue import dice_of, send_bytes
from testbed.experiments.deployment.links import VirtualRadio
from testbed.experiments.deployment.virtual import VirtualDeployment
from testbed.ue.channel_state import ChannelState
from testbed.ue.client import Client
from testbed.virtual_time import run_virtually

Told = Callable[[float, float], object]
"""Takes the seconds of a run that have passed, and all of them."""


def untold(passed_s: float, seconds: float) -> None:
    """A `Told` that does nothing."""


def run_cell(
    config: CellConfig,
    watches: Mapping[str, Watch] | None = None,
    clear: Clear = lambda seconds: False,
    channels_s: float | None = None,
    told: Told = untold,
    spread: Spread = Spread(),  # noqa: B008
) -> CellRun:
    """Run a cell in virtual time; the same configuration gives the same result.

    Args:
        watches: told of every response of a group, by the group's name.
        clear: called after every step with the time since the warm-up; the run ends early once it returns true.
        channels_s: time that computed channels cover, after which they repeat. Default: that of the run.
        told: called after every step that follows the warm-up.
        spread: processes among which base stations are divided; whatever it is, the result is the same. More than one
            take no `watches`.

    Raises:
        BadInput: an unknown profile, an unreadable trace, models that cannot be used, or efficiencies that do not fit
            the groups.
        EngineError: a response of greedy decoding under the strict judge differs from the target's own.
    """

    def stepped(seconds: float) -> bool:
        told(config.warmup_s + seconds, config.seconds)
        return clear(seconds)

    if config.cells is None:
        if spread != Spread():
            raise BadInput("base stations are divided among processes: give `cells`, or one process")
        with computed_pair(config) as pair:
            return run_virtually(_Cell(config, channels_s or config.seconds, pair).run(watches or {}, stepped))
    with spread.begun() as workers:
        return Network(config, channels_s or config.seconds, watches, workers).run(stepped)


class _Cell:
    """The parts of a run."""

    def __init__(self, config: CellConfig, channels_s: float, pair: ComputedPair | None) -> None:
        plan = None if config.bs.plan is None else read_plan(config)
        config = self._config = config if plan is None else plan.applied(config)
        self._deployment = VirtualDeployment()
        self._decoding = DecodingUes(config, self._deployment.clock, pair)
        self._estimates = CellEstimates()
        self._hints = DecidedHints(self._estimates.tell)
        self._bs = base_station(
            self._deployment, config, config.bs, self._hints if config.control.decides else None, self._hints.worths,
            None if plan is None else plan.scheduler(config), pair=pair,
        )  # fmt: skip
        self._members = [group for group in config.ues for _ in range(group.count)]
        weights = [group.weight for group in self._members] if plan is None else plan.weights(config)
        self._radio = VirtualRadio(config.radio, radio_ues(config), channels_s, config.seed, weights)

    async def run(self, watches: Mapping[str, Watch], clear: Clear) -> CellRun:
        config, clock = self._config, self._deployment.clock
        from_s, to_s = clock.time() + config.warmup_s, clock.time() + config.seconds
        tallies = [UeTally(clock, from_s, to_s, watches.get(group.name, unwatched)) for group in self._members]
        lives = [
            (self._send if group.traffic == "bytes" else self._decode)(group, number, tallies[number])
            for number, group in enumerate(self._members)
        ]
        if config.control.decides:
            lives.append(self._controller().run(tallies))

        def look(whole: bool) -> Snapshot:
            ues = {number: ue_work(self._radio.ports[number], tally) for number, tally in enumerate(tallies)}
            return Snapshot(ues, self._bs.waiting, {0: site_work(0, Site(self._radio.cell, self._bs))} if whole else {})

        counting = counted(config, clock, look, grouped(config, tallies), clear)
        return await self._deployment.run(counting, *lives)

    def _controller(self) -> JointController:
        return JointController(
            self._config, self._members, self._radio, self._estimates, self._hints.apply, self._bs.metrics,
            self._deployment.clock,
        )  # fmt: skip

    def _ways(self, number: int, tally: UeTally) -> tuple[Counted, Counted]:
        up, down = (Counted(self._radio.ports[number][up], tally, up) for up in (True, False))
        return up, down

    async def _send(self, group: UeGroup, number: int, tally: UeTally) -> None:
        """Life of a UE that sends bytes."""
        up, _ = self._ways(number, tally)
        await send_bytes(group, up, self._deployment.clock, dice_of(self._config.seed, number))

    async def _decode(self, group: UeGroup, number: int, tally: UeTally) -> None:
        """Life of a UE that decodes responses."""
        config, clock, radio = self._config, self._deployment.clock, self._radio
        ways, sizers = self._ways(number, tally), self._decoding.sizers(group)

        async def known(client: Client) -> ChannelState:
            truth = RadioChannel(config.radio, radio.air, number, radio.cell.begin(), clock)
            return await ue_state(group, truth, client, clock, tally, (config.seed, number))

        client = self._bs.connect(ways, sizers, ue_name(number))
        await self._decoding.decode(group, number, tally, client, known)
