"""A UE's whole run, from data set to outcomes, with warm-up, losslessness gate and progress."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from testbed.channel.link import Link
from testbed.clock import Clock, WallClock, unix_zero_s
from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.deployment.distortions import own_standstill_told
from testbed.experiments.inputs.padding import padded
from testbed.experiments.inputs.state import channel_state
from testbed.experiments.runs.prepare import Workload, policy_of, room
from testbed.experiments.runs.turns import Conversations, OwnOutputs
from testbed.protocols.messages import Welcome
from testbed.protocols.methods import run_method
from testbed.tasks import together
from testbed.ue.dial import dial
from testbed.ue.drafters.after import StatesAfter
from testbed.ue.drafters.base import Drafter
from testbed.ue.load_drafter import DrafterOptions, load_drafter
from testbed.ue.pace import REAL_TIME, Pace
from testbed.ue.records import RoundRecord
from testbed.ue.run import Clients, Job, JobRunner, Outcome, Setting, sampling_of, schedule

Progress = Callable[[Job, RoundRecord], None]
Done = Callable[[Outcome], None]

LOG = logging.getLogger(__name__)


class Watch(NamedTuple):
    """Progress callbacks."""

    round: Progress
    done: Done
    greeted: Callable[[Welcome], None] = lambda welcome: None
    """Called with the BS's answer to the greeting, before anything is decoded."""
    stood: Callable[[float], None] = lambda still_s: None
    """Called with the longest standstill of this process while it decoded."""


class Begun(NamedTuple):
    """A resumed run."""

    identity: bytes
    """Identity of the UE."""
    done: Sequence[Outcome] = ()
    """Finished outcomes."""


async def execute(config: RunConfig, work: Workload, watch: Watch, begun: Begun | None = None) -> list[Outcome]:
    """Decode every prompt by every method; outcomes in the order in which they ended, gate applied.

    Args:
        begun: finished part of a resumed run; None: a new run.

    Raises:
        BadInput: the drafter cannot be used, or does not go with the BS's target.
        LinkError: the BS cannot be reached.
    """
    drafter = drafter_of(config, work)
    clock = WallClock()
    try:
        setting = setting_of(config, _real_clients(config, clock, begun.identity if begun else None), drafter)
        with own_standstill_told() as beat:
            outcomes = await decode_all(config, work, watch, setting, clock, begun.done if begun else ())
        watch.stood(beat.still_s)
        return outcomes
    finally:
        drafter.close()


def drafter_of(config: RunConfig, work: Workload) -> Drafter:
    """The drafter of a run, with room for its prompts and outputs. Warns if several methods share its memory.

    Raises:
        ModelError: it cannot be used.
    """
    if config.drafter_memory and sum(run_method(method).drafts for method in config.methods) > 1:
        LOG.warning("methods find each other's outputs in the drafter's memory: give one method a run to compare them")
    longest = max(room(prompt, config.max_tokens) for prompt in [*work.prompts, *work.warmup])
    options = DrafterOptions(
        vocab_size=work.prompter.vocab_size if work.prompter else None,
        context=longest + config.max_tokens + 1,
        sequences=config.concurrency,
        threads=config.threads,
        gpu_layers=config.gpu_layers,
        kv_type=config.kv_type,
        memory_tokens=config.drafter_memory,
        tokenizer=work.prompter.directory if work.prompter else None,
    )
    return load_drafter(work.drafter, options)


def _real_clients(config: RunConfig, clock: Clock, identity: bytes | None) -> Clients:
    """Connections over ZeroMQ: to the BS, and past the emulated link if the configuration has an address for it."""
    insecure, timeout_s, pad = config.insecure, config.timeout_s, config.pad

    def wrap(link: Link) -> Link:
        return link if pad is None else padded(link, pad, config.hidden_bits)

    link = dial(config.bs, config.keys, clock, timeout_s, config.failover_s, insecure, identity, wrap)
    if config.local_bs in (None, config.bs):
        return Clients(link, link)
    keys = config.keys.split(",")[0] if config.keys else None
    return Clients(link, dial(str(config.local_bs), keys, clock, timeout_s, insecure=insecure))


def setting_of(config: RunConfig, clients: Clients, drafter: Drafter, pace: Pace = REAL_TIME) -> Setting:
    """The settings that all requests of a run share."""
    return Setting(
        clients,
        StatesAfter(drafter) if config.states == "after" else drafter,
        policy_of(config, drafter.fingerprint),
        config.threshold,
        config.tie_tolerance,
        pace=pace,
        rule=config.auto_rule,
        sampling=sampling_of(config),
        seed=config.seed,
        hidden_bits=config.hidden_bits,
        speed_tps=config.speed_tps,
        accept_slower=config.accept_slower,
        lookahead=config.lookahead,
        stream=config.stream,
    )


async def decode_all(
    config: RunConfig, work: Workload, watch: Watch, setting: Setting, clock: Clock, done: Sequence[Outcome] = ()
) -> list[Outcome]:
    """Connect, warm up, decode every prompt by every method, compare the outputs with the target's own, and close.

    Args:
        done: finished outcomes of a resumed run.

    Raises:
        BadInput: the BS refuses the drafter's vocabulary, a prompt is too long for it, or `watch.greeted` refuses it.
        LinkError: the BS cannot be reached.
    """
    link, local = setting.clients
    try:
        fingerprint = work.prompter.fingerprint if work.prompter else ""
        welcome = await link.connect(fingerprint, setting.drafter.vocab_size)
        if local is not link:
            await local.connect(fingerprint, setting.drafter.vocab_size)
        watch.greeted(welcome)
        if config.window > welcome.max_window:
            raise BadInput(f"window {config.window}: the BS takes at most {welcome.max_window}")
        talk = Conversations(config, work, welcome)
        state = await channel_state(config.csi, link, clock)
        zero_s = _own_zero_s(done) if isinstance(clock, WallClock) else None
        runner = JobRunner(replace(setting, state=state))
        return await _run_all(config, work, talk, watch, runner, welcome, done, zero_s)
    finally:
        if local is not link:
            await local.close()
        await link.close()


def _own_zero_s(done: Sequence[Outcome]) -> float:
    """Unix time at the zero of this process's clock: another number than those of the processes before a resumption, by
    which their rounds are told apart.
    """
    zero_s, before = unix_zero_s(), {outcome.record.clock_unix_s for outcome in done}
    while zero_s in before:
        zero_s = math.nextafter(zero_s, math.inf)
    return zero_s


async def _run_all(
    config: RunConfig,
    work: Workload,
    talk: Conversations,
    watch: Watch,
    runner: JobRunner,
    welcome: Welcome,
    done: Sequence[Outcome],
    zero_s: float | None,
) -> list[Outcome]:
    for method in config.methods:
        for prompt in work.warmup:
            await runner.decode(method, prompt.ids, min(config.max_tokens, 32), welcome.end_ids)
    finished = {(o.method, o.request) for o in done}
    jobs = schedule(config.methods, len(work.prompts), config.seed)
    outcomes: list[Outcome] = list(done)
    own = OwnOutputs(work.own, runner, welcome, config.max_tokens)

    async def worker(queue: Iterator[Job]) -> None:
        for job in queue:
            ids, told = talk.ids(job.request), _teller(watch, job)
            record = await runner.decode(job.method, ids, config.max_tokens, welcome.end_ids, told, job.request)
            record = msgspec.structs.replace(record, clock_unix_s=zero_s)
            outcomes.append(Outcome(job.method, job.request, record))
            watch.done(outcomes[-1])

    for stage in talk.stages:
        own.learn(outcomes)
        await talk.begin(stage, own)
        here = set(talk.at(stage))
        queue = iter([job for job in jobs if job.request in here and (job.method, job.request) not in finished])
        await together(worker(queue) for _ in range(config.concurrency))
    own.learn(outcomes)
    return await _gated(talk, own, runner, outcomes, config.max_tokens) if config.gate else outcomes


def _teller(watch: Watch, job: Job) -> Callable[[RoundRecord], None]:
    return lambda record: watch.round(job, record)


async def _gated(
    talk: Conversations, own: OwnOutputs, runner: JobRunner, outcomes: list[Outcome], longest: int
) -> list[Outcome]:
    """Compare every output that is not drawn independently with the target's own, decoded by the same engine."""
    checked = []
    for outcome in outcomes:
        if runner.draws(outcome.method):
            checked.append(outcome)
            continue
        ids, which = talk.ids(outcome.request), runner.own_output(outcome.method, outcome.request, longest)
        found = await runner.check(which, ids, outcome.record.token_ids, await own.of(which, ids))
        lossless = found is None or found.tie
        checked.append(msgspec.structs.replace(outcome, lossless=lossless, divergence=found))
    return checked
