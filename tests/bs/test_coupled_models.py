"""Coupled sampling with real models: random ones on each engine, and the bundled pair's distribution."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult
from testbed.bs.engines.coupled import chosen
from testbed.bs.engines.registry import load_engine
from testbed.models.bundle import bundled
from testbed.noise import exponentials
from testbed.protocols import protocol
from testbed.protocols.methods import Ahead
from testbed.protocols.sampling import Coupling, Sampling
from testbed.ue.client import Client
from testbed.ue.drafters.base import Drafter
from testbed.ue.llama.drafter import LlamaDrafter
from testbed.ue.prompts import Prompter
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.stream_choice import StreamChoice
from tests.support.models import TOKENS
from tests.support.reference import Reference
from tests.support.sampled import Ids, Rows, chances, p_value, reference, rows
from tests.support.stations import client, station

PROMPT = [7, 30, 200, 11, 5]
HOW = Sampling(2.0, 40, 0.97, coupled=True)
LOOKAHEADS: tuple[Ahead, ...] = (0, 1, "stream", None)


def own_sample(model: Reference, seed: int, length: int) -> list[int]:
    """A target's sample, from transformers' logits and the definition of coupled sampling."""
    ids = list(PROMPT)
    for _ in range(length):
        p = reference(model.outputs(ids)[0][-1].astype(np.float64).tolist(), HOW)
        times = exponentials(seed, len(ids), TOKENS)
        ids.append(
            int(np.argmax([math.log(x) - math.log(e) if x else -math.inf for x, e in zip(p, times, strict=True)]))
        )
    return ids[len(PROMPT) :]


@asynccontextmanager
async def connected(engine: VerifyEngine) -> AsyncIterator[Client]:
    async with station(engine) as (_, address), client(address, timeout_s=60, greet=False) as connection:
        await connection.connect("", TOKENS)
        yield connection


@pytest.mark.parametrize("kind", ["transformers", "llama"])
@pytest.mark.parametrize("same", [True, False], ids=["own drafter", "other drafter"])
async def test_outputs_are_the_targets_own_sample(
    kind: str,
    same: bool,
    random_models: dict[str, Path],
    random_ggufs: dict[str, Path],
    references: dict[str, Reference],
) -> None:
    target = random_models["qwen3"] if kind == "transformers" else random_ggufs["qwen3"]
    engine = load_engine(kind, target, vocab_size=TOKENS)
    drafter: Drafter = LlamaDrafter(random_ggufs["qwen3" if same else "llama"], vocab_size=TOKENS, threads=1)
    accepted = 0
    async with connected(engine) as connection:
        for seed, name in enumerate(("coupled", "fh", "sh")):
            for lookahead in LOOKAHEADS:
                session = DecodingSession(
                    connection, drafter, protocol(name), FixedWindow(5), sampling=HOW, seed=seed, lookahead=lookahead,
                    streams=StreamChoice(5, alone=lookahead is None),
                )  # fmt: skip
                record = await session.decode(PROMPT, 24, ())
                assert record.token_ids == own_sample(references["qwen3"], seed, 24)
                accepted += sum(r.accepted for r in record.rounds)
            alone = await decode_remotely(connection, PROMPT, 24, (), sampling=HOW, seed=seed)
            assert alone.token_ids == record.token_ids
    assert accepted > 100 if same else accepted < 100
    engine.close()
    drafter.close()


# ---------------------------------------------------------------- the bundled pair


def continuation(target: Rows, drafter: Rows, prompt: Ids, sampling: Sampling, seed: int, length: int) -> Ids:
    """One continuation, in windows of two tokens."""
    coupling, output = Coupling(sampling, seed), ()
    while len(output) < length:
        drafted: Ids = ()
        for _ in range(min(2, length - len(output))):
            prefix = prompt + output + drafted
            drafted += (coupling(drafter(prefix), len(prefix)),)
        logprobs = np.stack([target(prompt + output + drafted[:i]) for i in range(len(drafted) + 1)])
        ids = np.array(prompt + output, np.int32), np.array(drafted, np.int32)
        margin = np.ones(len(logprobs), np.float32)
        result = VerifyResult(logprobs.argmax(1).astype(np.int32), margin, margin[1:], logprobs=logprobs)
        argmax = chosen(VerifyRequest("s", *ids, logprobs=True, coupling=coupling), result).argmax.tolist()
        kept = next((i for i, (a, b) in enumerate(zip(drafted, argmax, strict=False)) if a != b), len(drafted))
        output += (*drafted[:kept], argmax[kept])
    return output[:length]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "sampling", [Sampling(0.7, 6, 0.95), Sampling(1.0, 8, 0.99), Sampling(1.6, 5, 0.9)], ids=["0.7", "1.0", "1.6"]
)
def test_the_bundled_targets_own_distribution(sampling: Sampling) -> None:
    """20,000 continuations of three tokens, after the first words of an answer that may go on in many ways."""
    bundle = bundled()
    prompter = Prompter(bundle.require("tokenizer"))
    asked = tuple(prompter.ids("Anna has 3 bags with 4 apples each. She gives 5 apples away. How many are left?"))
    engine = load_engine("transformers", bundle.require("target"), vocab_size=prompter.vocab_size)
    drafter = LlamaDrafter(bundle.require("drafter"), prompter.vocab_size, threads=1)

    @functools.cache
    def drafts(prefix: Ids) -> np.ndarray:
        sequence = drafter.open(prefix, distributions=True)
        probs = sequence.draft_one().probs
        sequence.close()
        assert probs is not None
        return probs

    target, answer = rows(engine), ()
    expected = chances(target, asked, sampling, 3)
    while sum(chance > 0.01 for chance in expected.values()) < 12:
        answer += (int(target(asked + answer).argmax()),)
        expected = chances(target, asked + answer, sampling, 3)
    prompt = asked + answer
    counts = Counter(continuation(target, drafts, prompt, sampling, seed, 3) for seed in range(20_000))
    assert p_value(counts, expected) > 1e-4
