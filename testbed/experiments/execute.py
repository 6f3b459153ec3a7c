"""A UE's whole run: data set in, outcomes out, with warm-up, gate and progress."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from testbed.channel.link import ZmqLink, check_address, new_identity
from testbed.clock import WallClock
from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.datasets import Example, load_dataset
from testbed.protocols import TARGET_ONLY
from testbed.protocols.messages import Welcome
from testbed.ue.client import Client
from testbed.ue.drafter import LlamaDrafter
from testbed.ue.drafting import Drafter
from testbed.ue.prompts import Prompter
from testbed.ue.records import RoundRecord
from testbed.ue.run import Clients, Job, Outcome, Runner, check_method, schedule
from testbed.ue.window import FixedWindow

Progress = Callable[[Job, RoundRecord], None]
Done = Callable[[Outcome], None]


class Prompt(msgspec.Struct, frozen=True):
    """A prompt ready to decode."""

    ids: list[int]
    example: Example


class Work(NamedTuple):
    """All that a run decodes, and with what."""

    prompts: list[Prompt]
    warmup: list[Prompt]
    prompter: Prompter | None
    drafter_path: Path


class Watch(NamedTuple):
    """Who is told how the run goes."""

    round: Progress
    done: Done


def prepare(config: RunConfig, paths: tuple[Path | None, Path | None], given: Sequence[int | str] | None) -> Work:
    """Check a configuration and load its prompts.

    Args:
        paths: drafter and tokenizer directory of the bundled pair, used where the configuration names none.
        given: one prompt instead of the data set, as text in a list of one, or as ids; None: the data set.

    Raises:
        BadInput: anything that cannot be used.
    """
    _check(config)
    drafter = Path(config.drafter) if config.drafter else paths[0]
    if drafter is None:
        raise BadInput("which drafter? give --drafter FILE.gguf")
    if given is not None and not given:
        raise BadInput("the prompt is empty")
    by_ids = given is not None and isinstance(given[0], int)
    directory = Path(config.tokenizer) if config.tokenizer else None if by_ids or config.drafter else paths[1]
    if directory is None and not by_ids:
        raise BadInput("which tokenizer? give --tokenizer DIR, the directory of tokenizer.json")
    if given is not None and by_ids:
        readable = directory is not None and (directory / "tokenizer.json").exists()
        prompter = Prompter(directory) if directory is not None and readable else None
        prompt = Prompt([int(i) for i in given], Example(""))
        return Work([prompt], [prompt][: config.warmup], prompter, drafter)
    assert directory is not None
    if given is not None:
        examples, limit = [Example(str(given[0]))], 1
    else:
        wanted = None if config.limit is None else config.limit + config.warmup + config.shots
        examples = load_dataset(config.dataset, wanted)
        limit = min(config.limit or len(examples), max(1, len(examples) - config.shots))
    shots = [(e.question, e.answer or "") for e in examples[len(examples) - config.shots :]] if config.shots else []
    prompter = Prompter(directory, config.prompt_format, shots)
    prompts = [Prompt(prompter.ids(e.question), e) for e in examples]
    rest = prompts[limit : len(prompts) - config.shots] or prompts[:1]
    return Work(prompts[:limit], rest[: config.warmup], prompter, drafter)


def _check(config: RunConfig) -> None:
    """Refuse what can be refused before any file is read."""
    for method in config.methods:
        check_method(method)
    FixedWindow(config.window)
    for name, value, least in (
        ("max-tokens", config.max_tokens, 1),
        ("limit", 1 if config.limit is None else config.limit, 1),
        ("concurrency", config.concurrency, 1),
        ("warmup", config.warmup, 0),
        ("shots", config.shots, 0),
    ):
        if value < least:
            raise BadInput(f"{name} must be at least {least}, not {value}")
    if not 0 <= config.threshold <= 1:
        raise BadInput(f"threshold must lie in [0, 1], not {config.threshold}")
    if not (config.timeout_s > 0 and config.tie_tolerance >= 0):
        raise BadInput("timeout must be positive and tie-tolerance not negative")
    for address in (config.bs, config.local_bs or config.bs):
        check_address(address)


async def execute(config: RunConfig, work: Work, watch: Watch) -> list[Outcome]:
    """Decode every prompt by every method; outcomes in the order in which they ended, gate applied.

    Raises:
        BadInput: the drafter cannot be used, or does not go with the BS's target.
        LinkError: the BS cannot be reached.
    """
    longest = max(len(p.ids) for p in [*work.prompts, *work.warmup])
    drafter = LlamaDrafter(
        work.drafter_path,
        vocab_size=work.prompter.vocab_size if work.prompter else None,
        context=longest + config.max_tokens + 1,
        sequences=config.concurrency,
        threads=config.threads,
        gpu_layers=config.gpu_layers,
        kv_type=config.kv_type,
    )
    try:
        return await _connected(config, work, watch, drafter)
    finally:
        drafter.close()


async def _connected(config: RunConfig, work: Work, watch: Watch, drafter: Drafter) -> list[Outcome]:
    clock = WallClock()
    first = random.SystemRandom().randrange(2**31)
    link = Client(ZmqLink(config.bs, new_identity()), clock, first, config.timeout_s)
    beside = config.local_bs or config.bs
    local = link if beside == config.bs else Client(ZmqLink(beside, new_identity()), clock, first, config.timeout_s)
    try:
        fingerprint = work.prompter.fingerprint if work.prompter else ""
        welcome = await link.connect(fingerprint, drafter.vocab_size)
        if local is not link:
            await local.connect(fingerprint, drafter.vocab_size)
        _check_context(work, config, welcome)
        runner = Runner(
            Clients(link, local), drafter, FixedWindow(config.window), config.threshold, config.tie_tolerance
        )
        return await _run_all(config, work, watch, runner, welcome)
    finally:
        if local is not link:
            await local.close()
        await link.close()


def _check_context(work: Work, config: RunConfig, welcome: Welcome) -> None:
    if config.window > welcome.max_window:
        raise BadInput(f"window {config.window}: the BS takes at most {welcome.max_window}")
    for prompt in work.prompts:
        if len(prompt.ids) + config.max_tokens + 1 > welcome.max_positions:
            raise BadInput(
                f"a prompt of {len(prompt.ids)} tokens and {config.max_tokens} to come pass the target's context of "
                f"{welcome.max_positions}; shorten it or lower --max-tokens"
            )


async def _run_all(config: RunConfig, work: Work, watch: Watch, runner: Runner, welcome: Welcome) -> list[Outcome]:
    for method in config.methods:
        for prompt in work.warmup:
            await runner.decode(method, prompt.ids, min(config.max_tokens, 32), welcome.end_ids)
    jobs = schedule(config.methods, len(work.prompts), config.seed)
    queue = iter(jobs)
    outcomes: list[Outcome] = []

    async def worker() -> None:
        for job in queue:
            ids = work.prompts[job.request].ids
            told = _teller(watch, job)
            record = await runner.decode(job.method, ids, config.max_tokens, welcome.end_ids, told)
            outcomes.append(Outcome(job.method, job.request, record))
            watch.done(outcomes[-1])

    await _together([worker() for _ in range(config.concurrency)])
    return await _gated(config, work, runner, welcome, outcomes) if config.gate else outcomes


def _teller(watch: Watch, job: Job) -> Callable[[RoundRecord], None]:
    return lambda record: watch.round(job, record)


async def _together(workers: Sequence[Coroutine[None, None, None]]) -> None:
    """Run workers at once; the first failure cancels the others."""
    tasks = [asyncio.create_task(w) for w in workers]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gated(
    config: RunConfig, work: Work, runner: Runner, welcome: Welcome, outcomes: list[Outcome]
) -> list[Outcome]:
    """Hold every output against the target's own, decoded by the same engine."""
    own = {o.request: o.record.token_ids for o in outcomes if o.method == TARGET_ONLY}
    for request, prompt in enumerate(work.prompts):
        if request not in own:
            record = await runner.decode(TARGET_ONLY, prompt.ids, config.max_tokens, welcome.end_ids)
            own[request] = record.token_ids
    checked = []
    for outcome in outcomes:
        ids = work.prompts[outcome.request].ids
        found = await runner.check(outcome.request, ids, outcome.record.token_ids, own[outcome.request])
        lossless = found is None or found.tie
        checked.append(msgspec.structs.replace(outcome, lossless=lossless, divergence=found))
    return checked
