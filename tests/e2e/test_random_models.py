"""Random models of three architectures: a vLLM base station in a process of its own, a llama.cpp drafter here.

The drafter is another random model of the same vocabulary, so nearly every window has mismatches; the oracle is
transformers' greedy generation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station
from testbed.protocols import PROTOCOLS, protocol
from testbed.ue.client import Client
from testbed.ue.llama.drafter import LlamaDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.models import TOKENS
from tests.support.reference import Reference

BLOCK = 32
"""vLLM's KV block on a CPU."""
TOKENS_OUT = 24


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
    config = ServeConfig(engine="vllm", model=str(random_models[kind]), bind="tcp://127.0.0.1:*", max_batch_tokens=256)
    with base_station(config) as ready:
        drafter = LlamaDrafter(random_ggufs[other], context=512, sequences=16, threads=1)
        yield Site(ready["bind"], drafter, references[kind])
        drafter.close()


def ids(length: int, seed: int) -> list[int]:
    """A random prompt."""
    rng = random.Random(seed)
    return [rng.randrange(3, TOKENS) for _ in range(length)]


async def decode(site: Site, kind: str, window: int, prompts: Sequence[list[int]]) -> list[RequestRecord]:
    """All prompts at once, each by a UE with a connection of its own."""

    async def one(prompt: list[int]) -> RequestRecord:
        client = Client(ZmqLink(site.address, new_identity()), WallClock(), 1)
        try:
            welcome = await client.connect("", site.drafter.vocab_size)
            if kind == "target-only":
                return await decode_remotely(client, prompt, TOKENS_OUT, welcome.end_ids)
            session = DecodingSession(client, site.drafter, protocol(kind), FixedWindow(window))
            return await session.decode(prompt, TOKENS_OUT, welcome.end_ids)
        finally:
            await client.close()

    return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


LENGTHS = (1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 300)
"""The last is longer than one prefill chunk of 256 tokens."""


@pytest.mark.parametrize("kind", [*PROTOCOLS, "target-only"])
def test_every_protocol_is_lossless_at_block_boundaries_and_past_a_chunk(site: Site, kind: str) -> None:
    prompts = [ids(n, seed) for seed, n in enumerate(LENGTHS)]
    for record, prompt in zip(asyncio.run(decode(site, kind, 8, prompts)), prompts, strict=True):
        assert record.token_ids == site.reference.greedy(prompt, TOKENS_OUT)


@pytest.mark.parametrize("window", [1, 2, 7, 31, 64])
def test_windows(site: Site, window: int) -> None:
    prompt = ids(50, 100)
    (record,) = asyncio.run(decode(site, "sh", window, [prompt]))
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
