"""Several cells in virtual time: base stations with radio and engine of their own, and UEs that move between them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from testbed.channel.radio.adaptation import AdaptedAir
from testbed.channel.radio.loads import Loads
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.model import ModelSource, Spectrum
from testbed.channel.radio.network import CellPlace, NetworkChannels, NetworkUe
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.csi import RadioChannel, ue_state
from testbed.experiments.cell.parts.counting import CellCounter, CellRun, Clear, Site, grouped
from testbed.experiments.cell.parts.decoding import DecodingUes
from testbed.experiments.cell.parts.station import base_station
from testbed.experiments.cell.several.cache import RoamingCache
from testbed.experiments.cell.several.roaming import Roaming, RoamingSite, RoamingUe, ServingAir
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.several.ue import RoamingClient, RoamingPort
from testbed.experiments.cell.stations import Station
from testbed.experiments.cell.tally import Counted, Watch, unwatched
from testbed.experiments.cell.ue import dice_of, send_bytes
from testbed.experiments.deployment.virtual import TIMEOUT_S, VirtualDeployment, VirtualStation
from testbed.intervals import independent_seed
from testbed.ue.channel_state import ChannelState
from testbed.ue.client import Client


def network_ues(config: CellConfig) -> list[NetworkUe]:
    """The UEs of all groups, in order, as their channels need them."""
    return [
        NetworkUe(group.distance_m, group.speed_mps, group.path_m, number / group.count)
        for group in config.ues
        for number in range(group.count)
    ]


def network_channels(
    config: CellConfig, channels_s: float, rest_s: float = 0.0
) -> tuple[NetworkChannels, Loads | None]:
    """The channels of a run of several cells, and what interferes in them; None: they do not interfere.

    Args:
        rest_s: time at first in which no UE moves.

    Raises:
        BadInput: a configuration without `cells`, or places that cannot be.
    """
    source, radio = config.radio.source, config.radio
    if config.cells is None or not isinstance(source, ModelSource):
        raise BadInput("several cells need `cells`, and a source of kind model")
    spectrum = Spectrum(radio.bandwidth_hz, radio.slot_s, radio.duplex == "tdd", radio.harq.bler)
    stations = config.cells.stations
    cells = [CellPlace(complex(*stations[one.station].at_m), one.azimuth_deg) for one in config.cells.cells]
    window_ms = config.cells.interference_ms
    loads = Loads(radio, radio.slots(window_ms), len(cells)) if window_ms else None
    ues = network_ues(config)
    return NetworkChannels(source, cells, ues, spectrum, channels_s, config.seed, loads, rest_s), loads


def radio_cell(config: CellConfig, number: int, air: AdaptedAir, loads: Loads | None) -> RadioCell:
    """The slots of one cell."""
    seed = config.seed if number == 0 else independent_seed(config.seed, "blocks", number)
    return RadioCell(config.radio, air, seed, None if loads is None else partial(loads.count, number))


class Network:
    """The parts of a run of several cells.

    Raises:
        BadInput: a configuration without `cells`, an unknown profile, or places that cannot be.
    """

    def __init__(self, config: CellConfig, channels_s: float) -> None:
        self.channels, self._loads = network_channels(config, channels_s)
        assert config.cells is not None
        self._config, self._cells = config, config.cells
        self._deployment = VirtualDeployment()
        self._decoding = DecodingUes(config, self._deployment.clock)
        self._airs = [self.channels.air(number) for number in range(len(self._cells.cells))]
        engines = [self._engine(station) for station in self._cells.stations]
        self.sites = [self._site(number, *engines[one.station]) for number, one in enumerate(self._cells.cells)]
        self._members = [group for group in config.ues for _ in range(group.count)]

    def _engine(self, station: Station) -> tuple[VirtualStation, RoamingCache]:
        """A base station and its cache."""
        bs = self._config.bs if station.profile is None else replace(self._config.bs, profile=station.profile)
        cache = RoamingCache(bs.kv_tokens)
        return base_station(self._deployment, self._config, bs, cache=cache), cache

    def _site(self, number: int, station: VirtualStation, cache: RoamingCache) -> RoamingSite:
        """A cell of a base station."""
        radio = radio_cell(self._config, number, self._airs[number], self._loads)
        return RoamingSite(Site(radio, station), cache)

    async def run(self, watches: Mapping[str, Watch], clear: Clear) -> CellRun:
        """Run it; arguments as in `run_cell`."""
        config, clock = self._config, self._deployment.clock
        from_s, to_s = clock.time() + config.warmup_s, clock.time() + config.seconds
        tallies = [RoamingTally(clock, from_s, to_s, watches.get(group.name, unwatched)) for group in self._members]
        ues = [self._ue(number, tally) for number, tally in enumerate(tallies)]
        for one in self.sites:
            one.site.radio.begin()
        self.roaming = Roaming(self._cells, self.channels, ues, clock)
        self.roaming.begin()
        air = ServingAir(self._airs, ues)
        lives = [self._life(group, ue, air) for group, ue in zip(self._members, ues, strict=True)]
        counter = CellCounter(config, clock, [one.site for one in self.sites], [ue.ports for ue in ues])
        counted = counter.count(grouped(config, tallies), from_s, to_s, clear)
        return await self._deployment.run(counted, self.roaming.run(), *lives)

    def _ue(self, number: int, tally: RoamingTally) -> RoamingUe:
        group, clock = self._members[number], self._deployment.clock
        ports = {up: RoamingPort(number, up, group.weight) for up in (True, False)}
        if group.traffic == "bytes":
            return RoamingUe(self.sites, clock, number, ports, tally)
        client = RoamingClient(clock, TIMEOUT_S)
        return RoamingUe(self.sites, clock, number, ports, tally, client, self._decoding.sizers(group))

    async def _life(self, group: UeGroup, ue: RoamingUe, air: ServingAir) -> None:
        config, clock = self._config, self._deployment.clock
        if ue.client is None:
            way = Counted(ue.ports[True], ue.tally, True, clock)
            await send_bytes(group, way, clock, dice_of(config.seed, ue.number))
            return
        truth = RadioChannel(config.radio, air, ue.number, self.sites[0].site.radio.begin(), clock)

        async def known(client: Client) -> ChannelState:
            return await ue_state(group, truth, client, clock, ue.tally, (config.seed, ue.number))

        await self._decoding.decode(group, ue.number, ue.tally, ue.client, known)
