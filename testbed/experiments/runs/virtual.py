"""Runs in virtual time: the same session, server, scheduler and judge code, with link and compute times from models."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult
from testbed.bs.engines.registry import leave_a_core, load_engine
from testbed.bs.engines.target import describe
from testbed.bs.intake import Intake, Offer
from testbed.bs.judging.base import Judge, StrictJudge
from testbed.bs.scheduling.base import Fcfs
from testbed.bs.scheduling.window_hints import Windows
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import Direction, constant
from testbed.channel.spec import ChannelSpec
from testbed.channel.virtual import Sizer, VirtualServerLink, frame_bytes
from testbed.config import RunConfig
from testbed.experiments.inputs.coefficients import pass_coefficients
from testbed.experiments.inputs.payloads import OWN, sizers
from testbed.experiments.inputs.profile import DraftCost, Profile
from testbed.experiments.inputs.profile import PassWork as PassWork
from testbed.experiments.runs.execute import Watch, decode_all, load_drafter, setting_of
from testbed.experiments.runs.memo import MemoDrafter, MemoEngine
from testbed.experiments.runs.prepare import Workload
from testbed.optim.draft_window.controller import DEFAULT as WINDOWS
from testbed.optim.draft_window.controller import WindowConfig
from testbed.protocols.quantise import quantised
from testbed.ue.client import Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.run import Clients, Outcome
from testbed.ue.windows.rules import HINTED
from testbed.virtual_time import VirtualClock, run_virtually

TIMEOUT_S = 3600.0
"""Virtual seconds that a UE waits for the BS: slow links are what virtual runs are for."""


@dataclass(frozen=True)
class Models:
    """A pair whose passes are kept, for one run or many."""

    engine: VerifyEngine
    drafter: Drafter
    offer: Offer

    def close(self) -> None:
        """Free both."""
        self.drafter.close()
        self.engine.close()


def load_models(
    model: Path, engine: str, dtype: str, config: RunConfig, work: Workload, hidden: bool = False
) -> Models:
    """Load a pair into this process, with room for these prompts.

    Args:
        hidden: whether passes also keep the target's hidden states, for runs that judge by them.

    Raises:
        BadInput: a model that cannot be used; EngineError: the engine does not start.
    """
    target = describe(str(model))
    leave_a_core()
    loaded = load_engine(engine, target.directory, dtype=dtype, vocab_size=target.vocab_size)
    offer = Offer(
        model=str(model),
        tokenizer=target.tokenizer,
        vocab_size=target.vocab_size,
        hidden_size=loaded.hidden_size,
        end_ids=target.end_ids,
        max_positions=loaded.max_positions,
    )
    return Models(MemoEngine(loaded, hidden), MemoDrafter(load_drafter(config, work)), offer)


def run_virtual(
    config: RunConfig,
    work: Workload,
    watch: Watch,
    channel: ChannelSpec,
    profile: Profile,
    models: Models,
    payload: str = OWN,
    judge: Judge | None = None,
) -> list[Outcome]:
    """Decode every prompt by every method over a virtual link, as `execute` does over a real one.

    Deterministic: the same arguments give the same outcomes, times included.

    Args:
        channel: of kind `virtual`, or a trace.
        payload: one of `payloads.PAYLOADS`.
        judge: of this run alone, where it remembers sessions; None: strict.

    Raises:
        BadInput: prompts that the target cannot take.
    """
    config = msgspec.structs.replace(config, csi=csi_text(channel), timeout_s=TIMEOUT_S)
    return run_virtually(_decode(config, work, watch, channel, profile, models, payload, judge or StrictJudge()))


def csi_text(channel: ChannelSpec, origin_s: float = 0.0) -> str:
    """The `--csi` of a UE behind this link: what the link was set to."""
    if channel.file is not None:
        return f"trace={channel.file},origin_s={origin_s!r}"
    csi = channel.csi()
    if csi is None:
        return "passive"
    names = ("uplink_mbps", "downlink_mbps", "rtt_ms", "per_up", "per_down", "source")
    return ",".join(f"{name}={getattr(csi, name)}" for name in names)


async def _decode(
    config: RunConfig,
    work: Workload,
    watch: Watch,
    channel: ChannelSpec,
    profile: Profile,
    models: Models,
    payload: str,
    judge: Judge,
) -> list[Outcome]:
    clock = VirtualClock()
    server = VirtualServerLink()
    counted: tuple[Sizer, Sizer] = (frame_bytes, frame_bytes)
    if profile.sizes is not None:
        counted = sizers(quantised(profile.sizes, config.hidden_bits), profile.overheads, payload)
    link = server.attach(b"ue", *channel.path(0, stack_s=profile.stack_s), counted)
    beside_s = profile.hot.stack_s if profile.hot else profile.stack_s
    beside = [Direction(constant(delay_s=beside_s)) for _ in range(2)]
    local = server.attach(b"beside", beside[0], beside[1])
    runner = ProfileRunner(models.engine, profile, clock)
    hints = hinting(profile, models.offer.vocab_size) if config.window_rule.startswith(HINTED) else None
    intake = Intake(models.offer, SessionTable())
    station = BaseStation(server, runner, intake, Fcfs(), judge, clock, windows=hints)
    serving = asyncio.create_task(station.serve())
    clients = Clients(Client(link, clock, 0, config.timeout_s), Client(local, clock, 0, config.timeout_s))
    setting = setting_of(config, clients, models.drafter, ProfilePace(profile, clock))
    setting = replace(setting, sizes=profile.sizes, overheads=profile.overheads)
    try:
        return await decode_all(config, work, watch, setting, clock)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def hinting(
    profile: Profile, vocab_size: int = 0, chosen: WindowConfig = WINDOWS, max_requests: float = math.inf
) -> Windows:
    """What hints UEs how much to draft, at a profile's pass times."""
    known = pass_coefficients(profile.verify)
    return Windows(chosen, lambda: known, max_requests, vocab_size)


class ProfilePace:
    """Implements `Pace`: drafting takes what the profile says."""

    def __init__(self, profile: Profile, clock: VirtualClock) -> None:
        self._profile, self._clock, self._ended_s = profile, clock, -math.inf

    def _draft(self) -> DraftCost:
        hot = self._profile.hot
        return hot.draft if hot and self._clock.time() - self._ended_s < hot.within_s else self._profile.draft

    async def opened(self, prompt_len: int) -> None:
        """Prefilling the prompt."""
        await self._clock.sleep(self._draft().prefill_s(prompt_len))
        self._ended_s = self._clock.time()

    async def drafted(self, count: int, base_len: int) -> None:
        """Drafting a window."""
        await self._clock.sleep(self._draft().window_s(count, base_len))
        self._ended_s = self._clock.time()


class ProfileRunner:
    """Implements `EngineRunner`: a pass takes what the profile says, whatever computes it.

    A session's first pass computes its prefix, or a piece of it; later ones find what was computed in the cache, all
    but the newest token.
    """

    def __init__(self, engine: VerifyEngine, profile: Profile, clock: VirtualClock) -> None:
        self._engine, self._profile, self._clock = engine, profile, clock
        self._seen: dict[str, int] = {}
        self._ended_s = -math.inf

    async def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """Results of one pass, in order."""
        hot = self._profile.hot
        cost = hot.verify if hot and self._clock.time() - self._ended_s < hot.within_s else self._profile.verify
        results = self._engine.verify(batch)
        await self._clock.sleep(cost.pass_s([self._work(request) for request in batch]))
        self._ended_s = self._clock.time()
        return results

    def _work(self, request: VerifyRequest) -> PassWork:
        drafted, prefix = len(request.draft), len(request.prefix)
        cached = min(self._seen.get(request.session, 0), prefix - 1)
        self._seen[request.session] = prefix + drafted
        return PassWork(drafted, drafted + prefix - cached, cached)

    async def judged(self, positions: int) -> None:
        """The head's time (WISV eq. 17)."""
        if self._profile.head is not None:
            await self._clock.sleep(positions * self._profile.head.position_s)

    def release(self, session: str) -> None:
        """Let the engine forget a session."""
        self._seen.pop(session, None)
        self._engine.release(session)
