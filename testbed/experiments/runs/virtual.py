"""Runs in virtual time: the same session, server, scheduler and judge code, with link and compute times from models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from testbed.bs.engines.base import VerifyEngine
from testbed.bs.engines.registry import leave_a_core, load_engine
from testbed.bs.engines.target import describe
from testbed.bs.intake import Offer
from testbed.bs.judging.base import Judge
from testbed.channel.link_model import Direction, constant
from testbed.channel.spec import ChannelSpec
from testbed.channel.virtual import Sizer, frame_bytes
from testbed.config import RunConfig
from testbed.experiments.deployment.profiled import ProfilePace, ProfileRunner, hinting
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.payloads import OWN, sizers
from testbed.experiments.inputs.profile import Profile
from testbed.experiments.inputs.state import ORACLE, csi_text
from testbed.experiments.results.traffic import PAYLOAD, SOCKET
from testbed.experiments.runs.execute import Watch, decode_all, drafter_of, setting_of
from testbed.experiments.runs.memo import MemoEngine
from testbed.experiments.runs.memo_drafter import MemoDrafter, depends_on_passes
from testbed.experiments.runs.prepare import Workload
from testbed.protocols.quantise import quantised
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.hybrid import HybridDrafter
from testbed.ue.load_drafter import drafter_kind, hybrid_parts
from testbed.ue.run import Clients, Outcome
from testbed.ue.windows.registry import WINDOW_RULES
from testbed.virtual_time import run_virtually


@dataclass(frozen=True)
class Models:
    """A pair of models with memory of their results, for one or more runs."""

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
    """Load a pair into this process, with a context for these prompts.

    Args:
        hidden: whether passes also return the target's hidden states, for judges that need them.

    Raises:
        BadInput: an unusable model.
        EngineError: the engine does not start.
    """
    target = describe(str(model))
    leave_a_core()
    loaded = load_engine(engine, target.path, dtype=dtype, vocab_size=target.vocab_size)
    offer = Offer(
        model=str(model),
        tokenizer=target.tokenizer,
        vocab_size=target.vocab_size,
        hidden_size=loaded.hidden_size,
        end_ids=target.end_ids,
        max_positions=loaded.max_positions,
    )
    drafter = drafter_of(config, work)
    if drafter_kind(work.drafter).pure:
        drafter = MemoDrafter(drafter, depends_on_passes(work.drafter))
    elif isinstance(drafter, HybridDrafter):
        own = (hybrid_parts(work.drafter) or ("", work.drafter))[1]
        drafter = HybridDrafter(drafter.index, MemoDrafter(drafter.model, depends_on_passes(own)))
    return Models(MemoEngine(loaded, hidden), drafter, offer)


def run_virtual(
    config: RunConfig,
    work: Workload,
    watch: Watch,
    channel: ChannelSpec,
    profile: Profile,
    models: Models,
    payload: str = OWN,
    judge: Judge | None = None,
    csi: str = ORACLE,
) -> list[Outcome]:
    """Decode every prompt by every method over a virtual link, as `execute` does over a real one.

    Deterministic: the same arguments give the same outcomes, times included.

    Args:
        channel: of kind `virtual`, or a trace.
        payload: one of `payloads.PAYLOADS`.
        judge: used by this run only, if it has state; None: strict.
        csi: how the UE knows the channel state, see `csi_text`.

    Raises:
        BadInput: prompts that are too long for the target.
    """
    config = msgspec.structs.replace(config, csi=csi_text(channel, kind=csi))
    deployment = VirtualDeployment()
    station = deployment.base_station(
        ProfileRunner(models.engine, profile, deployment.clock),
        models.offer,
        judge=judge,
        windows=hinting(profile, models.offer.vocab_size) if WINDOW_RULES[config.window_rule].hinted else None,
    )
    clients = _clients(station, config, channel, profile, payload)
    pace = ProfilePace(profile, deployment.clock, ahead=config.states == "after")
    setting = setting_of(config, clients, models.drafter, pace)
    setting = replace(setting, sizes=profile.sizes, overheads=profile.overheads)
    return run_virtually(deployment.run(decode_all(config, work, watch, setting, deployment.clock)))


def counted_bytes(profile: Profile) -> str:
    """Which bytes a virtual run with this profile counts."""
    return SOCKET if profile.sizes is None else PAYLOAD


def _clients(
    station: VirtualStation, config: RunConfig, channel: ChannelSpec, profile: Profile, payload: str
) -> Clients:
    """Connections over the link, and to the base station directly for methods that draft there."""
    counted: tuple[Sizer, Sizer] = (frame_bytes, frame_bytes)
    if profile.sizes is not None:
        counted = sizers(quantised(profile.sizes, config.hidden_bits), profile.overheads, payload)
    link = station.connect(channel.path(0, stack_s=profile.stack_s), counted)
    stack_s = (profile.hot or profile).stack_s
    local = Direction(constant(delay_s=stack_s)), Direction(constant(delay_s=stack_s))
    return Clients(link, station.connect(local))
