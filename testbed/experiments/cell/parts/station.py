"""The base station behind a cell."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.bs.scheduling.base import Scheduler
from testbed.bs.scheduling.hints import WindowHints
from testbed.bs.scheduling.registry import SCHEDULERS, SchedulerSetting, scheduler
from testbed.bs.sessions import SessionTable
from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.parts.computed import ComputedPair
from testbed.experiments.cell.parts.judge import ChanceJudge
from testbed.experiments.cell.sections import CellBs
from testbed.experiments.deployment.profiled import hinting
from testbed.experiments.deployment.traffic_bs import OFFER, PrefixCache, TrafficRunner
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.coefficients import pass_coefficients
from testbed.experiments.inputs.profile import load_profile
from testbed.optim.pass_time import PassOverhead
from testbed.ue.windows.registry import WINDOW_RULES


def base_station(
    deployment: VirtualDeployment,
    config: CellConfig,
    bs: CellBs,
    hints: WindowHints | None = None,
    worths: Mapping[bytes, float] | None = None,
    order: Scheduler | None = None,
    cache: PrefixCache | None = None,
    pair: ComputedPair | None = None,
) -> VirtualStation:
    """Add a base station to a deployment.

    Args:
        hints: window hints of a controller. Default: the base station's own, if UEs follow any.
        worths: see `SchedulerSetting.worths`.
        order: scheduler. Default: the configured one.
        cache: of keys and values. Default: an empty one.
        pair: models that compute. Default: tokens are synthetic.

    Raises:
        BadInput: an unknown profile.
    """
    profile = load_profile(bs.profile)
    if order is None:
        known = pass_coefficients(profile.verify) if SCHEDULERS.choose(bs.scheduler).needs_coefficients else None
        worth = {} if worths is None else worths
        setting = SchedulerSetting(bs.max_batch, 10**9, known, kv_tokens=bs.kv_tokens, cuts=True, worths=worth)
        order = scheduler(bs.scheduler, setting)
    if hints is None and any(WINDOW_RULES[group.window_rule].hinted for group in config.ues):
        hints = hinting(profile, max_requests=bs.max_batch)
    lenient = any(group.judge_keeps or group.threshold for group in config.ues)
    held = PrefixCache(bs.kv_tokens, tail=True) if cache is None else cache
    computing = {} if pair is None else pair.computing(profile)
    between = PassOverhead(bs.between_ms / 1e3, bs.between_request_ms / 1e3)
    return deployment.base_station(
        TrafficRunner(
            profile.verify, held, deployment.clock, linger=False, lenient=lenient, between=between, **computing
        ),
        OFFER if pair is None else pair.models.offer,
        scheduler=order,
        judge=ChanceJudge(config.seed) if pair is None else pair.judge,
        sessions=SessionTable(total=2 * sum(group.count for group in config.ues) + 64),
        windows=hints,
    )
