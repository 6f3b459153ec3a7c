"""Process of a UE of `testbed cell run --real`."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from testbed.channel.link import ZmqLink
from testbed.channel.proxy import precise_loop
from testbed.clock import Clock, WallClock
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.csi import RadioChannel, ue_state
from testbed.experiments.cell.parts.drafts import Agreement, RealDrafter
from testbed.experiments.cell.planning import ue_name
from testbed.experiments.cell.real.radio import UeReport, tally_of
from testbed.experiments.cell.recorded import RecordedWork, real_replay, recording_of
from testbed.experiments.cell.several.moving import MovingClient
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.cell.ue import decode_responses, dice_of, drawn_lengths, streams_of
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace
from testbed.experiments.inputs.profile import load_profile
from testbed.files import whole_file
from testbed.process.interrupts import as_child
from testbed.protocols import protocol
from testbed.synthetic import VOCAB, next_token
from testbed.tasks import beside, cancel
from testbed.ue.channel_state import ChannelState
from testbed.ue.client import Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.records import RequestRecord
from testbed.ue.windows.registry import window_policy
from testbed.ue.windows.uploads import Uploads

TIMEOUT_S = 60.0


class CellUeOrder(msgspec.Struct, frozen=True):
    """Settings of one UE process; times are on the host's monotonic clock."""

    config: CellConfig
    number: int
    address: str
    radio_s: float
    """Beginning of the first slot."""
    start_s: float
    stations: Sequence[str] = ()
    """Addresses of all base stations, without radio."""

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
    with contextlib.closing(precise_loop()) as loop:
        report = loop.run_until_complete(_decode(order, together, moves))
    with whole_file(path) as part:
        part.write_bytes(msgspec.json.encode(report))


async def _decode(order: CellUeOrder, together: Connection | None, moves: Connection | None) -> UeReport:
    config, group, clock = order.config, order.group, WallClock()
    dice = dice_of(config.seed, order.number)
    end_s = order.start_s + config.seconds
    tally = tally_of(config, clock, order.start_s + config.warmup_s, end_s)
    client, moving = await _client(order, clock, tally, moves)
    recording = recording_of(group)
    work = None if recording is None else RecordedWork(recording, group.method.drafts)
    ue = _ue(order, client, work, tally)
    found: list[tuple[list[int], list[int]]] = []

    def seen(prompt: list[int], record: RequestRecord) -> None:
        found.append((prompt, list(record.token_ids)))

    await client.connect(ue.drafter.fingerprint, VOCAB)
    ue = replace(ue, state=await _state(order, client, tally))
    begin_s = order.start_s + group.begin_s + dice.uniform(0, min(1.0, config.warmup_s))
    await clock.sleep(max(0.0, begin_s - clock.time()))
    words = random.Random(f"prompts {config.seed} {order.number}")  # its own, so that lengths are those of virtual time
    living = decode_responses(
        group, ue, tally, clock, dice, lambda length: [words.randrange(VOCAB) for _ in range(length)],
        drawn_lengths(group) if work is None else work.next, seen,
        None if together is None else _ProcessMeeting(together).meet,
    )  # fmt: skip
    life = asyncio.create_task(beside(moving, living))
    await asyncio.wait([life], timeout=end_s - clock.time())
    if life.done():
        life.result()  # raises
    await cancel(life)
    with contextlib.suppress(Exception):
        await client.close()
    return UeReport.of(tally, sum(output != _expected(prompt, len(output)) for prompt, output in found))


async def _client(
    order: CellUeOrder, clock: Clock, tally: UeTally, moves: Connection | None
) -> tuple[Client, list[Coroutine[Any, Any, None]]]:
    """The UE's connection, and what moves it between cells."""
    if moves is None or not isinstance(tally, RoamingTally):
        return Client(ZmqLink(order.address, ue_name(order.number)), clock, 0, TIMEOUT_S), []
    client = MovingClient(order.address, order.stations, moves, tally, clock, TIMEOUT_S)
    await client.begin()
    return client, [client.follow()]


def _ue(order: CellUeOrder, client: Client, work: RecordedWork | None, tally: UeTally) -> LoadUe:
    """The UE, with drafts of the recording if there is one."""
    group, profile = order.group, load_profile(order.group.profile)
    hidden_size = profile.hidden_size or 64
    drafter: Drafter = RealDrafter(VOCAB, hidden_size, Agreement(order.config.seed, order.number, group.alpha))
    return LoadUe(
        client,
        drafter if work is None else real_replay(work, hidden_size),
        window_policy(group.window_rule, group.window) if group.method.drafts else None,
        ProfilePace(profile, client.clock, computed=tally.computed), speed_tps=group.class_tps, protocol=group.protocol,
        lookahead=group.lookahead,
        uploads=Uploads(protocol(group.protocol), hinted=True) if group.protocol_hints else None,
        streams=streams_of(group),
    )  # fmt: skip


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
