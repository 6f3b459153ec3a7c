"""Process of the radio of `testbed cell run --real`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from testbed.bs.control.client import ControlledStation
from testbed.channel.emulate import endpoint
from testbed.channel.proxy import Proxy, precise_loop
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.network import NetworkChannels
from testbed.clock import Clock, WallClock
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.control.controller import JointController
from testbed.experiments.cell.control.estimates import CellEstimates
from testbed.experiments.cell.real.relayed import RelayedCell, RelayedWays, StartedAir
from testbed.experiments.cell.real.reports import RadioReport, RelayedWork
from testbed.experiments.cell.real.roaming import RelayedUe, SendingUe
from testbed.experiments.cell.several.channels import network_channels, radio_cell
from testbed.experiments.cell.several.roaming import Roamer, Roaming
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.several.ue import RoamingPort
from testbed.experiments.cell.tally import Counted, UeTally
from testbed.experiments.cell.ue import dice_of, send_bytes
from testbed.experiments.deployment.distortions import Heartbeat
from testbed.experiments.runs.forked import one_line
from testbed.process.interrupts import as_child
from testbed.tasks import beside, together

HOST = "127.0.0.1"
LATE_S = 5.0
"""How late the slots of a radio that cannot keep up may be."""
LEAD_S, EACH_S, EACH_LOADING_S = 3.0, 0.3, 1.5
"""Time until the start, and more for each UE process; if it loads a drafter, the latter."""


def tally_of(config: CellConfig, clock: Clock, from_s: float, to_s: float) -> UeTally:
    """Counters of a UE, also of its moves if there are several cells."""
    return (UeTally if config.cells is None else RoamingTally)(clock, from_s, to_s)


def lead_s(config: CellConfig) -> float:
    """Time from the first slot to the start, in which the processes of the UEs begin."""
    each_s = EACH_S if config.models is None else EACH_LOADING_S
    return LEAD_S + each_s * sum(group.count for group in config.ues if group.traffic == "tokens")


def run_radio(
    config: CellConfig,
    targets: Sequence[str],
    line: Connection,
    ues: Mapping[int, Connection] | None = None,
    controlled: Path | None = None,
) -> None:
    """Stand between UEs and BS: tell the UEs' addresses, be told the start, and tell the
    `RadioReport` at the end.

    Args:
        targets: addresses of the base stations.
        ues: with several cells, lines to the processes of the UEs, which are told where they are.
        controlled: socket on which the BS awaits the controller of the cell, which runs here; None: nothing is decided.
    """
    as_child()
    loop = precise_loop()
    with one_line("the radio"), contextlib.suppress(BrokenPipeError, EOFError):  # the parent has ended
        loop.run_until_complete(
            _Radio(config, [endpoint(target) for target in targets], ues or {}, controlled).serve(line)
        )


class _RadioCounts(NamedTuple):
    """Counters since the first slot."""

    used: list[tuple[float, float]]
    """Bandwidth in use by cell."""
    moved: dict[int, tuple[int, int]]
    """Bytes by decoding UE."""
    times: dict[int, tuple[float, float, float, float]]
    """See `RelayedWays.times`."""


def _relayed(before: _RadioCounts, after: _RadioCounts, ue: int, switches: int) -> RelayedWork:
    """What a decoding UE did between two times."""
    up, down = (end - start for start, end in zip(before.moved[ue], after.moved[ue], strict=True))
    spent = [end - start for start, end in zip(before.times[ue], after.times[ue], strict=True)]
    return RelayedWork((up, down), (spent[0], spent[1]), (spent[2], spent[3]), switches)


class _Radio:
    """The cells, their relays, the UEs that send bytes, and the controller if there is one."""

    def __init__(
        self,
        config: CellConfig,
        targets: Sequence[tuple[str, int]],
        lines: Mapping[int, Connection],
        controlled: Path | None,
    ) -> None:
        self._config, self._clock, self._controlled = config, WallClock(), controlled
        self._members = [group for group in config.ues for _ in range(group.count)]
        self._air: StartedAir | None = None
        self._channels: NetworkChannels | None = None
        if config.cells is None:
            self._air = StartedAir(config.radio.air(radio_ues(config), config.seconds, config.seed))
            self._radios = [RadioCell(config.radio, self._air, config.seed)]
        else:
            self._channels, loads = network_channels(config, config.seconds, lead_s(config), LATE_S)
            self._channels.rsrp_dbm(0.0)  # computes the gains, which would take time from the first slots
            airs = map(self._channels.air, range(len(config.cells.cells)))
            self._radios = [radio_cell(config, number, air, loads) for number, air in enumerate(airs)]
        alone = self._radios[0] if config.cells is None else None
        decoding = {n: group for n, group in enumerate(self._members) if group.traffic == "tokens"}
        self._ways = {n: RelayedWays(n, group.weight, alone) for n, group in decoding.items()}
        self._proxies = {n: Proxy(None if alone is None else targets[0], way.make) for n, way in self._ways.items()}
        self._ports = {
            n: {up: RoamingPort(n, up, group.weight) for up in (True, False)}
            for n, group in enumerate(self._members) if n not in self._ways
        }  # fmt: skip
        self._targets, self._lines = targets, lines

    async def serve(self, line: Connection) -> None:
        ports = {number: await proxy.start(HOST, 0) for number, proxy in self._proxies.items()}
        for radio in self._radios:
            radio.begin()
        sending = {number: SendingUe(self._radios, ways) for number, ways in self._ports.items()}
        line.send({number: f"tcp://{HOST}:{port}" for number, port in ports.items()})
        await beside(self._roaming(sending), self._serve(line, sending))
        for proxy in self._proxies.values():
            await proxy.close()

    def _roaming(self, sending: Mapping[int, SendingUe]) -> list[Coroutine[Any, Any, None]]:
        """Let UEs enter their cells; returns what hands them over."""
        if self._config.cells is None or self._channels is None:
            for ue in sending.values():
                ue.arrive(0, handover=False)
            return []
        targets = [self._targets[cell.station] for cell in self._config.cells.cells]
        relayed = {
            n: RelayedUe(self._radios, way, self._proxies[n], targets, self._lines[n]) for n, way in self._ways.items()
        }
        ues: dict[int, Roamer] = {**relayed, **sending}
        roaming = Roaming(self._config.cells, self._channels, dict(sorted(ues.items())), len(ues), range(len(targets)))
        roaming.begin()
        return [roaming.run(self._clock)]

    async def _serve(self, line: Connection, sending: Mapping[int, SendingUe]) -> None:
        start_s = await asyncio.get_running_loop().run_in_executor(None, line.recv)
        if self._air is not None:
            self._air.start_s = start_s - self._radios[0].begin()
        line.send(await self._measure(sending, start_s))

    async def _measure(self, sending: Mapping[int, SendingUe], start_s: float) -> RadioReport:
        config, clock = self._config, self._clock
        from_s, to_s = start_s + config.warmup_s, start_s + config.seconds
        await clock.sleep(max(0.0, start_s - clock.time()))
        tallies = [tally_of(config, clock, from_s, to_s) for _ in self._members]
        heart = Heartbeat()
        beside_it = [heart.run(clock, from_s), *(self._send(n, ue, tallies[n]) for n, ue in sending.items())]
        if self._controlled is not None:
            assert self._air is not None, "decisions are for one cell"
            ports = {n: {True: way.up, False: way.down} for n, way in self._ways.items()} | self._ports
            radio = RelayedCell(self._radios[0], self._air, [ports[n] for n in sorted(ports)])
            beside_it.append(control_cell(config, self._members, radio, tallies, self._controlled, clock))
        before, after = await beside(beside_it, self._seen((from_s, to_s)))
        return RadioReport(
            used=[(up - up0, down - down0) for (up0, down0), (up, down) in zip(before.used, after.used, strict=True)],
            relayed={n: _relayed(before, after, n, tallies[n].switches) for n in self._ways},
            senders={n: tallies[n] for n in sending},
            still_s=heart.still_s,
            beats_late_s=heart.late_s,
        )

    async def _seen(self, times_s: Sequence[float]) -> list[_RadioCounts]:
        """What has been counted at each of these times."""
        found = list[_RadioCounts]()
        for until_s in times_s:
            await self._clock.sleep(until_s - self._clock.time())
            used = [(radio.counters[True].used, radio.counters[False].used) for radio in self._radios]
            moved = {number: proxy.moved_bytes() for number, proxy in self._proxies.items()}
            times = {n: way.times(self._config.radio.slot_s) for n, way in self._ways.items()}
            found.append(_RadioCounts(used, moved, times))
        return found

    async def _send(self, number: int, ue: SendingUe, tally: UeTally) -> None:
        """Life of a UE that sends bytes."""
        if isinstance(tally, RoamingTally):
            ue.counted(tally)
        way = Counted(ue.ports[True], tally, True)
        await send_bytes(self._members[number], way, self._clock, dice_of(self._config.seed, number))


async def control_cell(
    config: CellConfig,
    members: Sequence[UeGroup],
    radio: RelayedCell,
    tallies: Sequence[UeTally],
    path: Path,
    clock: Clock,
) -> None:
    """Decide for the radio of the cell and, over its socket, for the BS, until cancelled."""
    estimates = CellEstimates()
    with contextlib.closing(await ControlledStation.connect(path, estimates.tell)) as bs:
        controller = JointController(config, members, radio, estimates, bs.decide, bs.metrics, clock)
        await together([bs.run(), controller.run(tallies)])
