"""A chat through the OpenAI client that grows: answers are the target's own, and no turn is computed a second time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.runs.processes import base_station, counted_in
from testbed.llama.kept import common_prefix
from testbed.models.bundle import bundled
from testbed.ue.client import Client
from testbed.ue.prompts import Prompter, Turn
from testbed.ue.target_only import decode_remotely
from tests.e2e.test_endpoint import serving

QUESTIONS = (
    "Tom has 3 apples and buys 4 more in a shop near the station. On his way home he meets Anna, who has 12 apples and "
    "gives him 2 of them, and then he eats one. How many apples has Tom now, and how many has Anna?",
    "How many has he if he eats 2?",
    "And if he buys 5 more?",
    "Are you sure?",
)
LENGTH = 40
INTERVAL_S = 0.05


class Answered(NamedTuple):
    """A turn, and what it cost."""

    text: str
    verified: int
    """Positions that the rounds verified."""
    computed: int
    """Positions that the base station has computed since it began."""


def chat(client: Any, model: str, metrics: Path) -> list[Answered]:
    """Ask all questions in one conversation."""
    messages: list[Any] = []
    found: list[Answered] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        reply = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=LENGTH)
        text, spent = reply.choices[0].message.content, reply.speculation
        messages.append({"role": "assistant", "content": text})
        found.append(Answered(text, spent["drafted"] + spent["rounds"], computed(metrics)))
    return found


async def own_answers(bs: str, prompter: Prompter, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The target's own greedy answers, as ids."""
    client = Client(ZmqLink(bs, new_identity()), WallClock(), 1)
    try:
        welcome = await client.connect(prompter.fingerprint, prompter.vocab_size)
        records = [await decode_remotely(client, prompt, LENGTH, welcome.end_ids) for prompt in prompts]
    finally:
        await client.close()
    return [record.token_ids for record in records]


def computed(metrics: Path) -> int:
    """Positions that the base station computed, once their number no longer changes."""
    before = None
    while (now := counted_in(metrics)["computed_tokens"]) != before:
        before = now
        time.sleep(4 * INTERVAL_S)
    return int(now)


def test_a_chat_that_grows_computes_only_what_is_new(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    config = ServeConfig(
        engine="llama", model=target_for("llama", None), bind="tcp://127.0.0.1:*", metrics=str(metrics),
        metrics_interval_s=INTERVAL_S,
    )  # fmt: skip
    prompter = Prompter(bundled().require("tokenizer"))
    with base_station(config) as ready:
        with serving(ready["bind"], "--protocol", "greedy", "--window", "4") as ue:
            found = chat(ue.client, ue.ready["model"], metrics)
        turns = [
            Turn(*pair) for q, a in zip(QUESTIONS, found, strict=True) for pair in (("user", q), ("assistant", a.text))
        ]
        prompts = [prompter.conversation(turns[: 2 * i + 1]) for i in range(len(QUESTIONS))]
        answers = asyncio.run(own_answers(ready["bind"], prompter, prompts))
    assert [one.text for one in found] == [prompter.text(answer) for answer in answers]
    for (before, now), prompt, answer, after in zip(
        itertools.pairwise(found), prompts, answers, prompts[1:], strict=False
    ):
        known = common_prefix(np.array(prompt + answer), np.array(after), len(after))
        assert known >= len(prompt)
        assert now.computed - before.computed <= len(after) - known + now.verified + 1
