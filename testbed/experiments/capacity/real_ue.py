"""One UE process of `testbed capacity --real`: the usual session code, with drafts replayed at a device's pace."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.experiments.deployment.distortions import Heartbeat
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.runs.forked import one_line
from testbed.files import whole_file
from testbed.process.interrupts import as_child
from testbed.tasks import cancel
from testbed.ue.client import Client
from testbed.ue.drafters.recorded import Recorded, RecordedDrafter, load_recording
from testbed.ue.pace import ConstantPace
from testbed.ue.records import RoundRecord
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.predictor import load_predictor
from testbed.ue.windows.registry import window_policy

TIMEOUT_S = 60.0


class UeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one UE process; times are on the host's monotonic clock."""

    number: int
    ues: int
    address: str
    recording: str
    rule: str | None
    """A window rule; None: the target decodes alone."""
    window: int
    predictor: str | None
    draft_tps: float
    speed_tps: float
    promised: bool
    """Whether sessions ask for a guaranteed token speed; first come, first served ignores it."""
    seed: int
    start_s: float
    spread_s: float
    """The first request is sent within this time after the start."""
    stop_s: float
    """No request begins after this time."""


class Response(msgspec.Struct, frozen=True, array_like=True):
    """One response."""

    begin_s: float
    end_s: float
    tokens: int
    same: bool
    """Whether it equals the target's own output."""


class UeRound(msgspec.Struct, frozen=True, array_like=True):
    """One round; for a UE that does not draft, one token."""

    end_s: float
    drafted: int
    accepted: int
    committed: int
    batch_size: int
    draft_s: float
    link_s: float
    queue_s: float
    verify_s: float
    wasted_s: float


class Report(msgspec.Struct, frozen=True):
    """Results of one UE."""

    speed_tps: float
    responses: list[Response]
    rounds: list[UeRound]
    wrapped: bool
    """Whether prompts were repeated, which the BS has in its prefix cache."""
    still_s: float = 0.0
    """Longest standstill of its event loop after the warm-up."""


def run_ue(order: UeOrder, path: Path) -> None:
    """Decode until the end of the load, and write the report."""
    as_child()
    with one_line(f"UE {order.number}"):
        report = asyncio.run(_RealUe(order).run())
        with whole_file(path) as part:
            part.write_bytes(msgspec.json.encode(report))


class _RealUe:
    """One UE."""

    def __init__(self, order: UeOrder) -> None:
        self._order, self._clock = order, WallClock()
        recording = load_recording(Path(order.recording))
        self._drafter, self._ends, self._tokenizer = RecordedDrafter(recording), recording.end_ids, recording.tokenizer
        self._mine = recording.prompts[order.number :: order.ues]
        random.Random(f"{order.seed} {order.number}").shuffle(self._mine)
        self._policy = None if order.rule is None else _policy(order, order.rule)
        self._rounds: list[UeRound] = []

    async def run(self) -> Report:
        """Decode prompts one after another."""
        order, heart = self._order, Heartbeat()
        beating = asyncio.create_task(heart.run(self._clock, order.start_s + 2 * order.spread_s))
        try:
            responses = await self._responses()
        finally:
            await cancel(beating)
        return Report(order.speed_tps, responses, self._rounds, len(responses) > len(self._mine), heart.still_s)

    async def _responses(self) -> list[Response]:
        order, clock = self._order, self._clock
        client = Client(ZmqLink(order.address, new_identity()), clock, 0, TIMEOUT_S)
        ue = LoadUe(
            client, self._drafter, self._policy, ConstantPace(clock, 1 / order.draft_tps), self._ends,
            speed_tps=order.speed_tps if order.promised else None, accept_slower=True,
        )  # fmt: skip
        responses: list[Response] = []
        try:
            await client.connect(self._tokenizer, self._drafter.vocab_size)
            first_s = order.start_s + random.Random(f"start {order.seed} {order.number}").random() * order.spread_s
            await clock.sleep(max(0.0, first_s - clock.time()))
            for one in _again(self._mine):
                if clock.time() >= order.stop_s:
                    break
                begin_s = clock.time()
                record = await ue.decode(one.prompt, len(one.output), self._seen)
                same = record.token_ids == one.output
                responses.append(Response(begin_s, clock.time(), len(record.token_ids), same))
        finally:
            await client.close()
        return responses

    def _seen(self, record: RoundRecord) -> None:
        self._rounds.append(
            UeRound(
                self._clock.time(), record.drafted, record.accepted, record.committed, record.batch_size,
                record.draft_s, record.link_s, record.queue_s, record.verify_s, record.wasted_s,
            )
        )  # fmt: skip


def _policy(order: UeOrder, rule: str) -> WindowPolicy:
    predictor = None if order.predictor is None else load_predictor(Path(order.predictor))
    return window_policy(rule, order.window, predictor)


def _again(prompts: list[Recorded]) -> Iterator[Recorded]:
    while True:
        yield from prompts
