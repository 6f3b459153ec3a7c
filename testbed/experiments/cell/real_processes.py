"""Processes of `testbed cell run --real`: one for the radio, and one for each UE."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import msgspec

from testbed.channel.emulate import endpoint
from testbed.channel.link import ZmqLink, new_identity
from testbed.channel.link_model import Carrier
from testbed.channel.proxy import Proxy, precise_loop
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.ports import RadioPort
from testbed.clock import WallClock
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.csi import RadioChannel, ue_state
from testbed.experiments.cell.drafts import Agreement, RealDrafter
from testbed.experiments.cell.recorded import RecordedWork, real_replay, recording_of
from testbed.experiments.cell.tally import Counted, ResponseSums, UeTally
from testbed.experiments.cell.ue import decode_responses, dice_of, drawn_lengths, send_bytes
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace
from testbed.experiments.inputs.profile import load_profile
from testbed.files import whole_file
from testbed.synthetic import VOCAB, next_token
from testbed.tasks import cancel
from testbed.ue.channel_state import ChannelState
from testbed.ue.client import Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.records import RequestRecord
from testbed.ue.windows.registry import window_policy

TIMEOUT_S = 60.0
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


class CellUeOrder(msgspec.Struct, frozen=True):
    """Settings of one UE process; times are on the host's monotonic clock."""

    config: CellConfig
    number: int
    address: str
    radio_s: float
    """Beginning of the first slot."""
    start_s: float

    @property
    def group(self) -> UeGroup:
        """The UE's group."""
        return self.config.ues[radio_ues(self.config)[self.number].group]


# ---------------------------------------------------------------- radio


def run_radio(config: CellConfig, target: str, line: Connection) -> None:
    """Stand between UEs and BS: tell the UEs' addresses and when the first slot began, be told the start, and tell the
    `RadioReport` at the end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
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
                    members[n], Counted(cell.port(n, True, members[n].weight), tally, True, clock), clock,
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


# ---------------------------------------------------------------- UEs


class _ProcessMeeting:
    """Lets UEs in processes of their own wait until all of them are waiting."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier

    async def meet(self) -> None:
        """Return when all are waiting; never once one of them has ended."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._barrier.wait)
        except threading.BrokenBarrierError:
            await asyncio.Event().wait()


def run_ue(order: CellUeOrder, path: Path, barrier: Barrier | None = None) -> None:
    """Decode until the end, and write the report.

    Args:
        barrier: met before each request, by all UEs that send together; None: requests are independent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report = asyncio.run(_decode(order, barrier))
    with whole_file(path) as part:
        part.write_bytes(msgspec.json.encode(report))


async def _decode(order: CellUeOrder, barrier: Barrier | None) -> UeReport:
    config, group, clock = order.config, order.group, WallClock()
    dice = dice_of(config.seed, order.number)
    profile, end_s = load_profile(group.profile), order.start_s + config.seconds
    tally = UeTally(clock, order.start_s + config.warmup_s, end_s)
    client = Client(ZmqLink(order.address, new_identity()), clock, 0, TIMEOUT_S)
    recording, hidden_size = recording_of(group), profile.hidden_size or 64
    work = None if recording is None else RecordedWork(recording, group.method.drafts)
    drafter: Drafter = RealDrafter(VOCAB, hidden_size, Agreement(config.seed, order.number, group.alpha))
    if work is not None:
        drafter = real_replay(work, hidden_size)
    alone = not group.method.drafts
    ue = LoadUe(
        client, drafter, None if alone else window_policy(group.window_rule, group.window),
        ProfilePace(profile, clock), speed_tps=group.class_tps, protocol=group.protocol,
        lookahead=group.lookahead,
    )  # fmt: skip
    found: list[tuple[list[int], list[int]]] = []

    def seen(prompt: list[int], record: RequestRecord) -> None:
        found.append((prompt, list(record.token_ids)))

    await client.connect(drafter.fingerprint, VOCAB)
    ue = replace(ue, state=await _state(order, client, tally))
    begin_s = order.start_s + dice.uniform(0, min(1.0, config.warmup_s))
    await clock.sleep(max(0.0, begin_s - clock.time()))
    words = random.Random(f"prompts {config.seed} {order.number}")  # its own, so that lengths are those of virtual time
    living = decode_responses(
        group, ue, tally, clock, dice, lambda length: [words.randrange(VOCAB) for _ in range(length)],
        drawn_lengths(group) if work is None else work.next, seen,
        None if barrier is None else _ProcessMeeting(barrier).meet,
    )  # fmt: skip
    life = asyncio.create_task(living)
    await asyncio.wait([life], timeout=end_s - clock.time())
    if life.done():
        life.result()  # raises
    if barrier is not None:
        barrier.abort()  # the others are at their end, too
    await cancel(life)
    with contextlib.suppress(Exception):
        await client.close()
    return UeReport.of(tally, sum(output != _expected(prompt, len(output)) for prompt, output in found))


async def _state(order: CellUeOrder, client: Client, tally: UeTally) -> ChannelState:
    config, clock = order.config, client.clock
    air = config.radio.air(radio_ues(config), config.seconds, config.seed)
    truth = RadioChannel(config.radio, air, order.number, order.radio_s, clock)
    return await ue_state(order.group, truth, client, clock, tally, (config.seed, order.number))


def _expected(prompt: Sequence[int], count: int) -> list[int]:
    """The synthetic target's own output."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(prompt) :]
