"""A group of base stations in one process: their cells, and the UEs that are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from msgspec.structs import replace

from testbed.channel.radio.network import Used
from testbed.experiments.cell.config import MOST_UES, CellConfig
from testbed.experiments.cell.csi import RadioChannel, ue_state
from testbed.experiments.cell.parts.counting import Site, Snapshot, site_work, ue_work
from testbed.experiments.cell.parts.decoding import DecodingUes
from testbed.experiments.cell.parts.station import base_station
from testbed.experiments.cell.several.cache import Moved, RoamingCache
from testbed.experiments.cell.several.channels import network_channels, radio_cell, replayed_s
from testbed.experiments.cell.several.exchange import Division, Inbox, Outbox, Stop, Transit
from testbed.experiments.cell.several.roaming import Roaming, RoamingProcess
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.several.told import Record
from testbed.experiments.cell.several.ue import RoamingClient, RoamingPort
from testbed.experiments.cell.several.virtual_ue import RoamingSite, RoamingUe, ServingAir, VirtualUe
from testbed.experiments.cell.tally import Watch, unwatched
from testbed.experiments.cell.ue import dice_of, send_bytes
from testbed.experiments.deployment.virtual import TIMEOUT_S, VirtualDeployment, VirtualStation
from testbed.ue.channel_state import ChannelState
from testbed.ue.client import Client
from testbed.virtual_time import LogicalProcess, Simulation


class Group:
    """The parts of a group.

    Args:
        watches: as in `run_cell`.

    Raises:
        BadInput: a configuration without `cells`, an unknown profile, or places that cannot be.
    """

    def __init__(
        self, config: CellConfig, channels_s: float, share: Division, watches: Mapping[str, Watch] | None = None
    ) -> None:
        late_s = replayed_s(config) if len(share.stations) > 1 else 0.0
        self.channels, self._loads = network_channels(config, channels_s, late_s=late_s)
        assert config.cells is not None
        self._config, self._cells, self._share, self._watches = config, config.cells, share, watches or {}
        self._station_of = [one.station for one in self._cells.cells]
        self._simulation, self._deployment = Simulation(), VirtualDeployment()
        self._decoding = DecodingUes(config, self._simulation)
        self._airs = [self.channels.air(number) for number in range(len(self._cells.cells))]
        self._stations = {number: self._engine(number) for number in share.stations[share.number]}
        self.sites = {
            number: self._site(number, *self._stations[one.station])
            for number, one in enumerate(self._cells.cells)
            if one.station in self._stations
        }
        self._members = [group for group in config.ues for _ in range(group.count)]
        self._homes = {station: group for group, own in enumerate(share.stations) for station in own}
        self._processes = [LogicalProcess(self._simulation, MOST_UES + number) for number in self._stations]
        self._everyone: dict[int, RoamingUe] = {}
        """UEs that are here, and copies of those that were."""
        self.ues: dict[int, RoamingUe] = {}
        self.roaming = Roaming(self._cells, self.channels, self.ues, len(self._members), self.sites)
        self._handovers = RoamingProcess(self._simulation, self.roaming)
        self._air, self._began = ServingAir(self._airs, self._everyone), False

    def _engine(self, number: int) -> tuple[VirtualStation, RoamingCache]:
        """A base station and its cache."""
        profile = self._cells.stations[number].profile
        bs = self._config.bs if profile is None else replace(self._config.bs, profile=profile)
        cache = RoamingCache(bs.kv_tokens)
        return base_station(self._deployment, self._config, bs, cache=cache), cache

    def _site(self, number: int, station: VirtualStation, cache: RoamingCache) -> RoamingSite:
        """A cell of a base station."""
        radio = radio_cell(self._config, number, self._airs[number], self._loads)
        return RoamingSite(Site(radio, station), cache)

    def _begin(self) -> None:
        """Begin the run: base stations serve, and UEs enter their first cells."""
        self._began = True
        for process, (number, (station, _)) in zip(self._processes, self._stations.items(), strict=True):
            process.begin(self._serve(number, station))
            process.run()
        for number in range(len(self._members)):
            if int(self.channels.rsrp_dbm(0.0, [number]).argmax()) in self.sites:
                self.ues[number] = self._ue(number)
            else:
                self.channels.forget(number)
        self.roaming.begin()
        self._handovers.plan()
        for number, ue in self.ues.items():
            ue.virtual.process.begin(self._life(number, ue.virtual))

    async def _serve(self, number: int, station: VirtualStation) -> None:
        for cell, site in self.sites.items():
            if self._station_of[cell] == number:
                site.site.radio.begin()
        await station.serve()

    def _ue(self, number: int) -> RoamingUe:
        group, clock = self._members[number], self._simulation
        from_s, to_s = self._config.warmup_s, self._config.seconds
        tally = RoamingTally(clock, from_s, to_s, self._watches.get(group.name, unwatched))
        ports = {up: RoamingPort(number, up, group.weight) for up in (True, False)}
        decodes = group.traffic == "tokens"
        client, sizers = (RoamingClient(clock, TIMEOUT_S), self._decoding.sizers(group)) if decodes else (None, None)
        record = Record() if len(self._share.stations) > 1 else None
        found = RoamingUe(VirtualUe(number, clock, ports, tally, client, sizers, record), self.sites, sizers)
        self._everyone[number] = found
        return found

    async def _life(self, number: int, virtual: VirtualUe) -> None:
        config, clock, group = self._config, self._simulation, self._members[number]
        if virtual.client is None:
            await send_bytes(group, virtual.ways[0], clock, dice_of(config.seed, number))
            return
        truth = RadioChannel(config.radio, self._air, number, 0.0, clock)

        async def known(client: Client) -> ChannelState:
            return await ue_state(group, truth, client, clock, virtual.tally, (config.seed, number))

        await self._decoding.decode(group, number, virtual.tally, virtual.client, known)

    def advance(self, stop: Stop, given: Inbox) -> Outbox:
        """Take what the others have given, and go on until a time.

        Raises:
            EngineError: a response of greedy decoding under the strict judge differs from the target's own.
        """
        if not self._began:
            self._begin()
        for part in given.used:
            self.channels.take(part)
        for ue in given.ues:
            self._enter(ue)
        self._simulation.run(stop.at_s)
        used: Used | None = None
        leaving: dict[int, list[Transit]] = {}
        if stop.window is not None:
            used = None if self._loads is None else self.channels.used(stop.window)
            leaving = self._leave(stop.at_s)
        return Outbox(used, leaving, self._look(stop.whole) if stop.look else None)

    def _leave(self, now_s: float) -> dict[int, list[Transit]]:
        """Give away UEs that go to cells of other groups, once nothing of the old cell can reach them any more."""
        found: dict[int, list[Transit]] = defaultdict(list)
        for number, due in sorted(self.roaming.due.items()):
            home, ue = self._homes[self._station_of[due.cell]], self.ues[number]
            if home != self._share.number and now_s > ue.left_s + self._config.radio.wired_ms / 1e3:
                del self.ues[number]
                found[home].append(self._transit(number, ue, home))
        return dict(found)

    def _transit(self, number: int, ue: RoamingUe, home: int) -> Transit:
        due, filtered_dbm, since_s = self.roaming.release(number)
        self.channels.forget(number)
        virtual = ue.virtual
        virtual.process.pause()
        assert virtual.record is not None
        told, known = virtual.record.for_group(self._share.number, home)
        sessions = {session: (moved.tokens, moved.here) for session, moved in ue.sessions.items()}
        aired = {up: (port.slots, port.used) for up, port in virtual.ports.items()}
        return Transit(number, due, (filtered_dbm, since_s), told, known, ue.left_s, ue.arrivals, sessions, aired)

    def _enter(self, given: Transit) -> None:
        """Take a UE: its copy here goes through what it was told elsewhere."""
        number, simulation, life = given.ue, self._simulation, None
        now_s = simulation.now_s
        if number not in self._everyone:
            simulation.now_s = 0.0
            self._ue(number)
            life = self._life(number, self._everyone[number].virtual)
        else:
            self._everyone[number].virtual.process.resume()
        ue = self.ues[number] = self._everyone[number]
        virtual, simulation.now_s = ue.virtual, now_s
        assert virtual.record is not None
        virtual.follow(virtual.record.take(given.told, given.known), now_s, life)
        ue.left_s, ue.arrivals = given.left_s, given.arrivals
        ue.sessions = {session: Moved(*moved) for session, moved in given.sessions.items()}
        for up, counted in given.aired.items():
            virtual.ports[up].restore(*counted)
        self.roaming.expect(number, given.due, *given.measured)
        self._handovers.plan()

    def _look(self, whole: bool) -> Snapshot:
        ues = {number: ue_work(ue.virtual.ports, ue.virtual.tally) for number, ue in self.ues.items()}
        waiting = sum(station.waiting for station, _ in self._stations.values())
        if not whole:
            return Snapshot(ues, waiting)
        stations = {number: self._station_of[number] for number in self.sites}
        return Snapshot(
            ues, waiting, {number: site_work(stations[number], one.site) for number, one in self.sites.items()}
        )

    def tallies(self) -> dict[int, RoamingTally]:
        """Counters of the UEs that are here, by number."""
        return {number: ue.virtual.tally for number, ue in self.ues.items()}

    def close(self) -> None:
        """End all UEs and base stations."""
        everyone = [ue.virtual.process for ue in self._everyone.values()]
        self._simulation.close([self._handovers, *everyone, *self._processes])
