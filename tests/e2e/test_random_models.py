"""Random models of three architectures: a vLLM base station in a process of its own, a llama.cpp drafter here.

The drafter is another random model of the same vocabulary, so nearly every window has mismatches; the oracle is
transformers' greedy generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station
from testbed.protocols import PROTOCOLS, TARGET_ONLY, protocol
from testbed.protocols.methods import Ahead
from testbed.protocols.sampling import Sampling
from testbed.ue.client import Client
from testbed.ue.llama.drafter import LlamaDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.stream_choice import StreamChoice
from tests.support.models import TOKENS
from tests.support.reference import Reference

BLOCK = 32
"""vLLM's KV block on a CPU."""
TOKENS_OUT = 24
LOOKAHEADS: tuple[Ahead, ...] = (0, 1, "stream", None)


class Site(NamedTuple):
    """A running base station and the drafter for it."""

    address: str
    drafter: LlamaDrafter
    reference: Reference


@pytest.fixture(
    scope="module",
    params=[
        "qwen3",
        # the same engine and the same sessions again; tests/bs/engines/vllm/test_engine.py has every architecture
        pytest.param("llama", marks=pytest.mark.long),
        pytest.param("qwen2", marks=pytest.mark.long),
    ],
)
def site(
    request: pytest.FixtureRequest,
    random_models: dict[str, Path],
    random_ggufs: dict[str, Path],
    references: dict[str, Reference],
) -> Iterator[Site]:
    kind = request.param
    other = {"llama": "qwen2", "qwen2": "qwen3", "qwen3": "llama"}[kind]
    config = ServeConfig(
        engine="vllm", model=str(random_models[kind]), bind="tcp://127.0.0.1:*", max_batch_tokens=256, chunk_tokens=64
    )
    with base_station(config) as ready:
        drafter = LlamaDrafter(random_ggufs[other], context=512, sequences=16, threads=1)
        yield Site(ready["bind"], drafter, references[kind])
        drafter.close()


def ids(length: int, seed: int) -> list[int]:
    """A random prompt."""
    rng = random.Random(seed)
    return [rng.randrange(3, TOKENS) for _ in range(length)]


class Job(NamedTuple):
    """A request of a UE of its own."""

    kind: str
    window: int
    prompt: list[int]
    tokens: int = TOKENS_OUT
    lookahead: Ahead = 0


async def answered(site: Site, job: Job, timeout_s: float = 60.0) -> RequestRecord:
    """A request over a connection of its own."""
    client = Client(ZmqLink(site.address, new_identity()), WallClock(), 1, timeout_s)
    try:
        welcome = await client.connect("", site.drafter.vocab_size)
        if job.kind == TARGET_ONLY:
            return await decode_remotely(client, job.prompt, job.tokens, welcome.end_ids)
        session = DecodingSession(
            client, site.drafter, protocol(job.kind), FixedWindow(job.window), lookahead=job.lookahead,
            streams=StreamChoice(job.window, alone=job.lookahead is None),
        )  # fmt: skip
        return await session.decode(job.prompt, job.tokens, welcome.end_ids)
    finally:
        await client.close()


async def decode(site: Site, kind: str, window: int, prompts: Sequence[list[int]]) -> list[RequestRecord]:
    """All prompts at once, each by a UE with a connection of its own and the next lookahead."""
    aheads = itertools.cycle(LOOKAHEADS)
    jobs = [Job(kind, window, prompt, lookahead=ahead) for prompt, ahead in zip(prompts, aheads, strict=False)]
    return list(await asyncio.gather(*(answered(site, job) for job in jobs)))


KINDS = [*PROTOCOLS, TARGET_ONLY]
LENGTHS = (1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 300)
"""The last is longer than a pass of 256 tokens, and many times the share of 64 that one prompt has in it."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_protocol_is_lossless_at_block_boundaries_and_past_a_chunk(site: Site, kind: str) -> None:
    prompts = [ids(n, seed) for seed, n in enumerate(LENGTHS)]
    for record, prompt in zip(asyncio.run(decode(site, kind, 8, prompts)), prompts, strict=True):
        assert record.token_ids == site.reference.greedy(prompt, TOKENS_OUT)


async def sampled(site: Site, prompt: list[int], how: Sampling, seed: int) -> list[list[int]]:
    """Samples of target-only and of every protocol that can be coupled, over one connection."""
    client = Client(ZmqLink(site.address, new_identity()), WallClock(), 1, 60.0)
    try:
        ends = (await client.connect("", site.drafter.vocab_size)).end_ids
        found = [(await decode_remotely(client, prompt, TOKENS_OUT, ends, sampling=how, seed=seed)).token_ids]
        for kind in ("coupled", "fh", "sh"):
            session = DecodingSession(client, site.drafter, protocol(kind), FixedWindow(5), sampling=how, seed=seed)
            found.append((await session.decode(prompt, TOKENS_OUT, ends)).token_ids)
        return found
    finally:
        await client.close()


@pytest.mark.parametrize("how", [Sampling(1.5, coupled=True), Sampling(2.0, 40, 0.95, coupled=True)])
def test_coupled_samples_are_those_of_target_only(site: Site, how: Sampling) -> None:
    outputs = [asyncio.run(sampled(site, ids(20 + seed, 900 + seed), how, seed)) for seed in range(4)]
    assert all(found == [found[0]] * 4 for found in outputs)
    assert len({tuple(found[0]) for found in outputs}) == 4
    assert any(found[0] != site.reference.greedy(ids(20 + i, 900 + i), TOKENS_OUT) for i, found in enumerate(outputs))


@pytest.mark.parametrize("kind", ["greedy", "sh"])
@pytest.mark.parametrize("window", [1, 2, 7, 31, 64])
def test_windows_with_every_lookahead(site: Site, kind: str, window: int) -> None:
    prompt = ids(50, 100)
    for record in asyncio.run(decode(site, kind, window, [prompt] * len(LOOKAHEADS))):
        assert record.token_ids == site.reference.greedy(prompt, TOKENS_OUT)


def test_a_prompt_seen_before(site: Site) -> None:
    prompt = ids(2 * BLOCK, 200)
    first, second = (asyncio.run(decode(site, "fh", 8, [prompt]))[0] for _ in range(2))
    assert first.token_ids == second.token_ids == site.reference.greedy(prompt, TOKENS_OUT)


def test_sixteen_ues_at_once_share_passes(site: Site) -> None:
    prompts = [ids(20 + 3 * i, 300 + i) for i in range(16)]
    records = asyncio.run(decode(site, "greedy", 4, prompts))
    for record, prompt in zip(records, prompts, strict=True):
        assert record.token_ids == site.reference.greedy(prompt, TOKENS_OUT)
    rounds = [r for record in records for r in record.rounds]
    passes = sum(1 / r.batch_size for r in rounds)
    assert passes < len(rounds) / 2


def mixed(jobs: int, seed: int, tokens: int = TOKENS_OUT) -> list[Job]:
    """Requests of all kinds, windows from 1 to 31, prompts short, long and at the boundary of a block."""
    windows = (1, 4, 8, 31)
    prompts = [ids(LENGTHS[i % len(LENGTHS)], seed + i) for i in range(jobs)]
    return [
        Job(KINDS[i % len(KINDS)], windows[i % len(windows)], prompt, tokens, LOOKAHEADS[i // 2 % len(LOOKAHEADS)])
        for i, prompt in enumerate(prompts)
    ]


def test_sixteen_ues_of_all_kinds_at_once(site: Site) -> None:
    """Long prompts are computed in pieces beside the rounds of the others."""

    async def all_at_once(jobs: list[Job]) -> list[RequestRecord]:
        return list(await asyncio.gather(*(answered(site, job) for job in jobs)))

    jobs = mixed(16, 400)
    for record, job in zip(asyncio.run(all_at_once(jobs)), jobs, strict=True):
        assert record.token_ids == site.reference.greedy(job.prompt, job.tokens), job


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_base_station_killed_and_restarted_amid_rounds_of_all_kinds(
    kind: str, random_models: dict[str, Path], random_ggufs: dict[str, Path], references: dict[str, Reference]
) -> None:
    """The new one has no keys and values: prefixes in the midst of an answer come as prompts, in pieces."""

    async def killed_amid(site: Site, pid: int, jobs: list[Job], again: Callable[[], None]) -> list[RequestRecord]:
        requests = [asyncio.create_task(answered(site, job, timeout_s=900)) for job in jobs]
        while not any(request.done() for request in requests):
            await asyncio.sleep(0.01)
        assert not all(request.done() for request in requests)
        os.kill(pid, signal.SIGKILL)
        await asyncio.get_running_loop().run_in_executor(None, again)
        return list(await asyncio.gather(*requests))

    other = {"llama": "qwen2", "qwen2": "qwen3", "qwen3": "llama"}[kind]
    drafter = LlamaDrafter(random_ggufs[other], context=512, sequences=16, threads=1)
    jobs = mixed(16, 500, tokens=150)
    with contextlib.ExitStack() as held, ThreadPoolExecutor(1) as thread:

        def start(bind: str) -> dict[str, Any]:
            config = ServeConfig(engine="vllm", model=str(random_models[kind]), bind=bind, chunk_tokens=64)
            return thread.submit(held.enter_context, base_station(config)).result()

        ready = start("tcp://127.0.0.1:*")
        site = Site(ready["bind"], drafter, references[kind])
        records = asyncio.run(killed_amid(site, ready["pid"], jobs, lambda: start(ready["bind"]) and None))
    drafter.close()
    for record, job in zip(records, jobs, strict=True):
        assert record.token_ids == site.reference.greedy(job.prompt, job.tokens), job
