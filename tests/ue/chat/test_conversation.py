"""A chat: answers are the target's own, pieces say where they come from, and the conversation goes on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.cli.runs import chat as command
from testbed.errors import BadInput
from testbed.protocols.sampling import GREEDY
from testbed.ue.chat.conversation import DRAFTED, TARGET, Conversation, Piece
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.prompts import Prompter
from testbed.ue.run import Clients, JobRunner, Setting
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.endpoints import WORDS, words
from tests.support.stations import client, station


@contextlib.asynccontextmanager
async def conversation(directory: Path, context: int = 200) -> AsyncIterator[Conversation]:
    engine = SyntheticEngine(vocab_size=WORDS)
    async with station(engine) as (_, address), client(address, greet=False) as link:
        prompter = Prompter(words(directory), "{question}")
        welcome = await link.connect("", WORDS)
        runner = JobRunner(
            Setting(Clients(link, link), SyntheticDrafter(vocab_size=WORDS, alpha=0.8, hidden_size=8), FixedWindow(4))
        )
        yield Conversation(runner, prompter, welcome, context, "greedy", GREEDY, max_tokens=20)


async def test_an_answer_is_the_targets_own_and_every_piece_names_its_origin(tmp_path: Path) -> None:
    async with conversation(tmp_path) as talk:
        pieces: list[Piece] = []
        reply = await talk.ask("w5 w7 w1", pieces.append)
        link = talk.runner._setting.clients.link
        own = await decode_remotely(link, talk.prompter.ids("w5 w7 w1"), 20, ())
    record = reply.record
    assert record.token_ids == own.token_ids and "".join(p.text for p in pieces) == reply.text
    assert sum(p.origin == DRAFTED for p in pieces) == sum(r.accepted for r in record.rounds)
    assert sum(p.origin == TARGET for p in pieces) == len(pieces) - sum(r.accepted for r in record.rounds) > 0
    assert [turn.role for turn in talk.turns] == ["user", "assistant"] and talk.turns[1].content == reply.text.strip()


async def test_the_next_question_includes_the_last_answer_until_the_context_is_full(tmp_path: Path) -> None:
    async with conversation(tmp_path, context=60) as talk:
        first = await talk.ask("w5 w7 w1", lambda _: None)
        second = await talk.ask("w2", lambda _: None)
        assert second.record.prompt_len == first.record.prompt_len + len(first.record.token_ids) + 1
        await talk.ask("w3", lambda _: None)
        with pytest.raises(BadInput, match="exceeds the context of 60"):
            await talk.ask("w4", lambda _: None)


def test_colours_tell_drafted_from_corrected_tokens_and_a_line_sums_up() -> None:
    out = Console(width=60, force_terminal=True, color_system="standard", record=True)
    for piece in (Piece("plain", DRAFTED), Piece("loud", TARGET)):
        command._show(out, piece, False)
    codes = out.export_text(styles=True)
    assert codes.startswith("plain\x1b[") and "loud" in codes.split("\x1b[")[1]
    turn = {"rounds": 4, "tokens": 10, "drafted": 8, "accepted": 6, "latency_s": 2.0, "rtt_ms": 3.25}
    assert command.status(turn) == (
        "4 rounds · 10 tokens · AAL 2.50 · 6 of 8 drafted tokens accepted · 5.0 tok/s · link 3.2 ms a round"
    )
    assert json.dumps(turn)
