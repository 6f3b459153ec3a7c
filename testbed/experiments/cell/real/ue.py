"""Process of a UE of `testbed cell run --real`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from testbed.channel.link import Link, ZmqLink
from testbed.channel.proxy import precise_loop
from testbed.channel.tc.shared import enter_namespace
from testbed.clock import Clock, WallClock
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.csi import RadioChannel, ue_state
from testbed.experiments.cell.planning import ue_name
from testbed.experiments.cell.real.radio import tally_of
from testbed.experiments.cell.real.reports import UeReport
from testbed.experiments.cell.real.work import DecodedWork, work_of
from testbed.experiments.cell.several.moving import MovingClient
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.cell.ue import decode_responses, dice_of, lookahead_of, streams_of
from testbed.experiments.deployment.distortions import Heartbeat
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace
from testbed.experiments.inputs.padding import padded
from testbed.experiments.inputs.profile import load_profile
from testbed.experiments.runs.forked import one_line
from testbed.process.interrupts import as_child
from testbed.protocols import protocol
from testbed.protocols.quantise import FULL_BITS
from testbed.tasks import beside, cancel
from testbed.ue.channel_state import ChannelState
from testbed.ue.client import Client
from testbed.ue.windows.uploads import Uploads

TIMEOUT_S = 60.0


class CellUeOrder(msgspec.Struct, frozen=True):
    """Settings of one UE process; times are on the host's monotonic clock."""

    config: CellConfig
    number: int
    address: str
    start_s: float
    stations: Sequence[str] = ()
    """Addresses of all base stations, without radio."""
    own: Path | None = None
    """File of the target's own responses (`work.write_own`); None: the cell has no models."""
    place: tuple[str, str] | None = None
    """Network namespace and own address; None: those of the run."""

    @property
    def group(self) -> UeGroup:
        """The UE's group."""
        return self.config.ues[radio_ues(self.config)[self.number].group]


class _ProcessMeeting:
    """Lets UEs in processes of their own wait until all of them are waiting (`answer_together`)."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    async def meet(self) -> None:
        """Return when all are waiting; never once one of them has ended."""
        told, loop, line = asyncio.Event(), asyncio.get_running_loop(), self._line
        loop.add_reader(line.fileno(), told.set)
        try:
            line.send(None)
            await told.wait()
            line.recv()
        except (EOFError, OSError):  # one has ended
            await asyncio.Event().wait()
        finally:
            loop.remove_reader(line.fileno())


def answer_together(lines: Sequence[Connection]) -> None:
    """Answer UEs that wait at the other ends once all of them do, again and again until one has ended.

    A barrier of `multiprocessing` needs semaphores, and the process that keeps account of them.
    """
    with contextlib.suppress(EOFError, OSError):
        while True:
            for line in lines:
                line.recv()
            for line in lines:
                line.send(None)
    for line in lines:
        line.close()


def run_ue(order: CellUeOrder, path: Path, together: Connection | None = None, moves: Connection | None = None) -> None:
    """Decode until the end, and write the report.

    Args:
        together: asks before each request, for all UEs that send together; None: requests are independent.
        moves: tells in which of several cells the UE is; None: there is one.
    """
    as_child()
    with one_line(f"UE {order.number}"):
        if order.place is not None:
            enter_namespace(order.place[0])
        with contextlib.closing(precise_loop()) as loop:
            report = loop.run_until_complete(_decode(order, together, moves))
        report.write(path)


async def _decode(order: CellUeOrder, together: Connection | None, moves: Connection | None) -> UeReport:
    config, group, clock = order.config, order.group, WallClock()
    dice = dice_of(config.seed, order.number)
    end_s = order.start_s + config.seconds
    tally = tally_of(config, clock, order.start_s + config.warmup_s, end_s)
    client, moving = await _client(order, clock, tally, moves)
    work = work_of(config, order.number, group, order.own, tally)
    pace = ProfilePace(load_profile(group.profile), clock, computed=tally.computed)
    welcome = await client.connect(work.tokenizer, work.drafter.vocab_size)
    ue = replace(_ue(group, client, work, pace), end_ids=welcome.end_ids, state=await _state(order, client, tally))
    ready_s = clock.time() - order.start_s
    begin_s = order.start_s + group.begin_s + dice.uniform(0, min(1.0, config.warmup_s))
    heart, meeting = Heartbeat(), None if together is None else _ProcessMeeting(together).meet

    async def living() -> None:
        await clock.sleep(max(0.0, begin_s - clock.time()))
        await decode_responses(group, ue, tally, clock, dice, *work.requests, meeting)

    life = asyncio.create_task(beside([*moving, heart.run(clock, order.start_s + config.warmup_s)], living()))
    await asyncio.wait([life], timeout=max(0.0, end_s - clock.time()))
    if life.done():
        life.result()  # raises
    await cancel(life)
    with contextlib.suppress(Exception):
        await client.close()
    return UeReport(tally, work.lossy(), pace.late_s, ready_s, heart.still_s, heart.late_s)


async def _client(
    order: CellUeOrder, clock: Clock, tally: UeTally, moves: Connection | None
) -> tuple[Client, list[Coroutine[Any, Any, None]]]:
    """The UE's connection, and what moves it between cells."""
    if moves is None or not isinstance(tally, RoamingTally):
        return Client(_link(order), clock, 0, TIMEOUT_S), []
    client = MovingClient(order.address, order.stations, moves, tally, clock, TIMEOUT_S)
    await client.begin()
    return client, [client.follow()]


def _link(order: CellUeOrder) -> Link:
    """The UE's link; the messages of models are as large as those of the models of its profile, where it has some."""
    link = ZmqLink(order.address, ue_name(order.number), source=order.place and order.place[1])
    if order.own is None or load_profile(order.group.profile).sizes is None:
        return link
    return padded(link, order.group.profile, FULL_BITS)


def _ue(group: UeGroup, client: Client, work: DecodedWork, pace: ProfilePace) -> LoadUe:
    """The UE, before it knows anything of its channel."""
    return LoadUe(
        client,
        work.drafter,
        work.policy if group.method.drafts else None,
        pace, speed_tps=group.class_tps, protocol=group.protocol, lookahead=group.lookahead,
        uploads=Uploads(protocol(group.protocol), hinted=True) if group.protocol_hints else None,
        threshold=group.threshold, streams=streams_of(group), most_tokens=work.most_tokens, chooser=lookahead_of(group),
    )  # fmt: skip


async def _state(order: CellUeOrder, client: Client, tally: UeTally) -> ChannelState:
    config, clock = order.config, client.clock
    air = config.radio.air(radio_ues(config), config.seconds, config.seed)
    truth = RadioChannel(config.radio, air, order.number, order.start_s, clock)
    return await ue_state(order.group, truth, client, clock, tally, (config.seed, order.number))
