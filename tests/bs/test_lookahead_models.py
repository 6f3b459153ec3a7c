"""Every lookahead of every protocol on real engines: the output is transformers' greedy generation."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from testbed.bs.engines.registry import load_engine
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.methods import Ahead
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.hybrid import HybridDrafter
from testbed.ue.drafters.index import IndexDrafter, IndexRule
from testbed.ue.drafters.lookup import NgramLookup
from testbed.ue.llama.drafter import LlamaDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.stream_choice import StreamChoice
from tests.support.models import TOKENS
from tests.support.reference import Reference
from tests.support.stations import client, station

LOOKAHEADS: tuple[Ahead, ...] = (0, 1, "stream", None)
WINDOWS = (1, 5, 64)


@pytest.mark.parametrize("kind", ["transformers", "llama"])
@pytest.mark.parametrize("drafts", ["own model", "other model", "hybrid"])
async def test_outputs_are_the_targets_own(
    kind: str,
    drafts: str,
    random_models: dict[str, Path],
    random_ggufs: dict[str, Path],
    references: dict[str, Reference],
) -> None:
    target = random_models["qwen3"] if kind == "transformers" else random_ggufs["qwen3"]
    engine = load_engine(kind, target, vocab_size=TOKENS)
    model = LlamaDrafter(random_ggufs["llama" if drafts == "other model" else "qwen3"], vocab_size=TOKENS, threads=1)
    index = IndexDrafter(TOKENS, model.context, "", lambda: NgramLookup(8, 1), IndexRule(1, 4))
    drafter: Drafter = HybridDrafter(index, model) if drafts == "hybrid" else model
    streamed = 0
    async with station(engine) as (_, address), client(address, timeout_s=60, greet=False) as connection:
        await connection.connect("", TOKENS)
        for number, (name, lookahead) in enumerate(itertools.product(PROTOCOLS, LOOKAHEADS)):
            window, prompt = WINDOWS[number % len(WINDOWS)], [7, 30, 200, 11, 5 + number]
            session = DecodingSession(
                connection, drafter, protocol(name), FixedWindow(window), lookahead=lookahead,
                stream=drafts == "hybrid", streams=StreamChoice(window, alone=lookahead is None),
            )  # fmt: skip
            record = await session.decode(prompt, 24, ())
            assert record.token_ids == references["qwen3"].greedy(prompt, 24), (name, lookahead, window)
            streamed += any(round_.streamed and round_.accepted for round_ in record.rounds)
    assert streamed > 0 or drafts == "other model"
    engine.close()
    drafter.close()
