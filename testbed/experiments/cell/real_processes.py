"""Process of the radio of `testbed cell run --real`, and what processes report."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import msgspec

from testbed.bs.control.client import ControlledStation
from testbed.channel.emulate import endpoint
from testbed.channel.proxy import Proxy, precise_loop
from testbed.clock import WallClock
from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.control.controller import JointController
from testbed.experiments.cell.control.estimates import CellEstimates
from testbed.experiments.cell.parts.relayed import RelayedRadio
from testbed.experiments.cell.tally import Counted, ResponseSums, UeTally
from testbed.experiments.cell.ue import dice_of, send_bytes
from testbed.process.interrupts import as_child
from testbed.tasks import beside, together

HOST = "127.0.0.1"


class UeReport(msgspec.Struct):
    """What one UE counted."""

    bytes_up: float
    bytes_down: float
    sent: int
    delays_s: list[float]
    tokens: int
    busy_s: dict[str, float]
    latencies_s: list[float]
    judged: int
    violated: int
    rounds: int = 0
    drafted: int = 0
    air_s: tuple[float, float] = (0.0, 0.0)
    band_s: tuple[float, float] = (0.0, 0.0)
    accepted: int = 0
    rejected: int = 0
    answered: ResponseSums = msgspec.field(default_factory=ResponseSums)
    csi_error_db: float = 0.0
    csi_known: int = 0
    looked_ahead: int = 0
    drafted_ahead: int = 0
    void: int = 0
    protocols: dict[str, int] = msgspec.field(default_factory=dict)
    switches: int = 0
    lossy: int = 0
    """Responses that differ from the target's own."""

    @classmethod
    def of(cls, tally: UeTally, lossy: int = 0) -> UeReport:
        """The counters of a tally."""
        return cls(
            tally.bytes[True], tally.bytes[False], tally.sent, tally.delays_s, tally.tokens, tally.busy_s,
            tally.latencies_s, tally.judged, tally.violated, tally.rounds, tally.drafted,
            (tally.air_s[True], tally.air_s[False]), (tally.band_s[True], tally.band_s[False]), tally.accepted,
            tally.rejected, tally.answered, tally.csi_error_db, tally.csi_known,
            tally.looked_ahead, tally.drafted_ahead, tally.void, tally.protocols, tally.switches, lossy,
        )  # fmt: skip

    def restore(self, tally: UeTally) -> UeTally:
        """Put the counters into a tally."""
        tally.bytes = {True: self.bytes_up, False: self.bytes_down}
        tally.sent, tally.delays_s, tally.tokens, tally.busy_s = self.sent, self.delays_s, self.tokens, self.busy_s
        tally.latencies_s, tally.judged, tally.violated = self.latencies_s, self.judged, self.violated
        tally.rounds, tally.drafted = self.rounds, self.drafted
        tally.accepted, tally.rejected, tally.answered = self.accepted, self.rejected, self.answered
        tally.csi_error_db, tally.csi_known = self.csi_error_db, self.csi_known
        tally.looked_ahead, tally.drafted_ahead, tally.void = self.looked_ahead, self.drafted_ahead, self.void
        tally.protocols.update(self.protocols)
        tally.switches = self.switches
        for there, (up, down) in ((tally.air_s, self.air_s), (tally.band_s, self.band_s)):
            there.update({True: up, False: down})
        return tally


class RadioReport(msgspec.Struct):
    """What the process of the radio counted."""

    used: tuple[float, float]
    """Sums of shares of the bandwidth in use after the warm-up, up and down."""
    carried: dict[int, tuple[float, float]]
    """Bytes that each decoding UE sent and received after the warm-up."""
    air_s: dict[int, tuple[float, float]]
    """Time of the slots in which each decoding UE sent and received after the warm-up."""
    band_s: dict[int, tuple[float, float]]
    """The same, times its shares of the bandwidth."""
    senders: dict[int, UeReport]
    """Reports of UEs that send bytes."""
    switches: dict[int, int]
    """Changes of windows and protocols by the controller of the cell after the warm-up, by decoding UE."""


def run_radio(config: CellConfig, target: str, line: Connection, controlled: Path | None = None) -> None:
    """Stand between UEs and BS: tell the UEs' addresses and when the first slot began, be told the start, and tell the
    `RadioReport` at the end.

    Args:
        controlled: socket on which the BS awaits the controller of the cell, which runs here; None: nothing is decided.
    """
    as_child()
    loop = precise_loop()
    with contextlib.suppress(BrokenPipeError, EOFError):  # the parent has ended
        loop.run_until_complete(_Radio(config, target, controlled).serve(line))


class _Radio:
    """The cell, its relays, the UEs that send bytes, and the controller if there is one."""

    def __init__(self, config: CellConfig, target: str, controlled: Path | None) -> None:
        self._config, self._target, self._controlled = config, endpoint(target), controlled
        self._members = [group for group in config.ues for _ in range(group.count)]

    async def serve(self, line: Connection) -> None:
        config, loop = self._config, asyncio.get_running_loop()
        radio = RelayedRadio(config, self._members)
        proxies = {number: Proxy(self._target, ways.make) for number, ways in radio.ways.items()}
        ports = {number: await proxy.start(HOST, 0) for number, proxy in proxies.items()}
        line.send(({number: f"tcp://{HOST}:{port}" for number, port in ports.items()}, radio.cell.begin()))
        start_s = await loop.run_in_executor(None, line.recv)
        line.send(await self._measure(radio, proxies, start_s))
        for proxy in proxies.values():
            await proxy.close()

    async def _measure(self, radio: RelayedRadio, proxies: dict[int, Proxy], start_s: float) -> RadioReport:
        config, clock = self._config, WallClock()
        from_s, to_s = start_s + config.warmup_s, start_s + config.seconds
        await clock.sleep(max(0.0, start_s - clock.time()))
        tallies = [UeTally(clock, from_s, to_s) for _ in self._members]
        senders = {n: tally for n, tally in enumerate(tallies) if n not in proxies}
        beside_it = [self._send(radio, n, tally, clock) for n, tally in senders.items()]
        if self._controlled is not None:
            beside_it.append(self._control(radio, tallies, self._controlled))
        before, after = await beside(beside_it, self._seen(radio, proxies, (from_s, to_s)))
        spent = {n: [end - start for start, end in zip(before.times[n], after.times[n], strict=True)] for n in proxies}
        return RadioReport(
            used=(after.used[0] - before.used[0], after.used[1] - before.used[1]),
            carried={n: (up - before.moved[n][0], down - before.moved[n][1]) for n, (up, down) in after.moved.items()},
            air_s={n: (up, down) for n, (up, down, _, _) in spent.items()},
            band_s={n: (up, down) for n, (_, _, up, down) in spent.items()},
            senders={n: UeReport.of(tally) for n, tally in senders.items()},
            switches={n: tallies[n].switches for n in proxies},
        )

    async def _seen(
        self, radio: RelayedRadio, proxies: dict[int, Proxy], times_s: Sequence[float]
    ) -> list[_CellCounts]:
        """What the cell has counted at each of these times."""
        clock, found = WallClock(), list[_CellCounts]()
        for until_s in times_s:
            await clock.sleep(until_s - clock.time())
            used = (radio.cell.counters[True].used, radio.cell.counters[False].used)
            moved = {number: proxy.moved_bytes() for number, proxy in proxies.items()}
            found.append(_CellCounts(used, moved, {number: ways.times() for number, ways in radio.ways.items()}))
        return found

    async def _send(self, radio: RelayedRadio, number: int, tally: UeTally, clock: WallClock) -> None:
        """Life of a UE that sends bytes."""
        way = Counted(radio.senders[number], tally, True, clock)
        await send_bytes(self._members[number], way, clock, dice_of(self._config.seed, number))

    async def _control(self, radio: RelayedRadio, tallies: Sequence[UeTally], path: Path) -> None:
        """Decide for the radio and, over its socket, for the BS."""
        estimates = CellEstimates()
        with contextlib.closing(await ControlledStation.connect(path, estimates.tell)) as bs:
            controller = JointController(
                self._config, self._members, radio, estimates, bs.decide, bs.metrics, WallClock()
            )
            await together([bs.run(), controller.run(tallies)])


class _CellCounts(NamedTuple):
    """Counters of the cell since its first slot."""

    used: tuple[float, float]
    moved: dict[int, tuple[int, int]]
    times: dict[int, tuple[float, float, float, float]]
