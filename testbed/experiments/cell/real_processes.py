"""Process of the radio of `testbed cell run --real`, and what processes report."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from multiprocessing.connection import Connection

import msgspec

from testbed.channel.emulate import endpoint
from testbed.channel.link_model import Carrier
from testbed.channel.proxy import Proxy, precise_loop
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.ports import RadioPort
from testbed.clock import WallClock
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.tally import Counted, ResponseSums, UeTally
from testbed.experiments.cell.ue import dice_of, send_bytes
from testbed.process.interrupts import as_child
from testbed.tasks import cancel

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
            tally.looked_ahead, tally.drafted_ahead, tally.void, lossy,
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


def run_radio(config: CellConfig, target: str, line: Connection) -> None:
    """Stand between UEs and BS: tell the UEs' addresses and when the first slot began, be told the start, and tell the
    `RadioReport` at the end.
    """
    as_child()
    loop = precise_loop()
    with contextlib.suppress(BrokenPipeError, EOFError):  # the parent has ended
        loop.run_until_complete(_Radio(config, target).serve(line))


class _Radio:
    """The cell, its relays, and the UEs that send bytes."""

    def __init__(self, config: CellConfig, target: str) -> None:
        self._config, self._target = config, endpoint(target)

    async def serve(self, line: Connection) -> None:
        config, loop = self._config, asyncio.get_running_loop()
        cell = RadioCell(config.radio, config.radio.air(radio_ues(config), config.seconds, config.seed), config.seed)
        members = [group for group in config.ues for _ in range(group.count)]
        ways = {n: _Ways(cell, n, group.weight) for n, group in enumerate(members) if group.traffic == "tokens"}
        proxies = {number: Proxy(self._target, way.make) for number, way in ways.items()}
        ports = {number: await proxy.start(HOST, 0) for number, proxy in proxies.items()}
        line.send(({number: f"tcp://{HOST}:{port}" for number, port in ports.items()}, cell.begin()))
        start_s = await loop.run_in_executor(None, line.recv)
        report = await self._measure(cell, members, proxies, ways, start_s)
        line.send(report)
        for proxy in proxies.values():
            await proxy.close()

    async def _measure(
        self,
        cell: RadioCell,
        members: Sequence[UeGroup],
        proxies: dict[int, Proxy],
        ways: dict[int, _Ways],
        start_s: float,
    ) -> RadioReport:
        config, clock = self._config, WallClock()
        from_s, to_s = start_s + config.warmup_s, start_s + config.seconds
        await clock.sleep(max(0.0, start_s - clock.time()))
        tallies = {n: UeTally(clock, from_s, to_s) for n, group in enumerate(members) if n not in proxies}
        tasks = [
            asyncio.create_task(
                send_bytes(
                    members[n], Counted(cell.port(n, True, members[n].weight), tally, True), clock,
                    dice_of(config.seed, n),
                )
            )
            for n, tally in tallies.items()
        ]  # fmt: skip
        seen = []
        for until_s in (from_s, to_s):
            await clock.sleep(until_s - clock.time())
            used = (cell.counters[True].used, cell.counters[False].used)
            moved = {number: proxy.moved_bytes() for number, proxy in proxies.items()}
            seen.append((used, moved, {number: way.times() for number, way in ways.items()}))
        await cancel(*tasks)
        (before, moved, timed), (after, moved_end, timed_end) = seen
        spent = {n: [end - start for start, end in zip(timed[n], timed_end[n], strict=True)] for n in ways}
        return RadioReport(
            used=(after[0] - before[0], after[1] - before[1]),
            carried={n: (moved_end[n][0] - moved[n][0], moved_end[n][1] - moved[n][1]) for n in proxies},
            air_s={n: (up, down) for n, (up, down, _, _) in spent.items()},
            band_s={n: (up, down) for n, (_, _, up, down) in spent.items()},
            senders={number: UeReport.of(tally) for number, tally in tallies.items()},
        )


class _Ways:
    """Ports of one UE's connections."""

    def __init__(self, cell: RadioCell, number: int, weight: float) -> None:
        self._cell, self._number, self._weight = cell, number, weight
        self._made: list[tuple[RadioPort, RadioPort]] = []

    def make(self, connection: int) -> tuple[Carrier, Carrier]:
        """Ports of a connection (a `MakePath`)."""
        up, down = (self._cell.port(self._number, way, self._weight) for way in (True, False))
        self._made.append((up, down))
        return up, down

    def times(self) -> tuple[float, float, float, float]:
        """Time of the slots in which it has sent and received, and the same times its shares of the bandwidth."""
        slot_s = self._cell.config.slot_s
        up, down = ([ports[way] for ports in self._made] for way in (0, 1))
        sent, received = (sum(port.slots for port in ports) * slot_s for ports in (up, down))
        return sent, received, sum(port.used for port in up) * slot_s, sum(port.used for port in down) * slot_s
