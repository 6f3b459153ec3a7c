"""A conversation with the target through the device–edge pair, with the origin of every piece of text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.protocols.detokeniser import Detokeniser
from testbed.protocols.messages import Welcome
from testbed.protocols.sampling import Sampling, request_seed
from testbed.ue.prompts import Prompter, Turn
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.run import JobRunner

DRAFTED, TARGET = "drafted", "target"
"""Origin of a token: drafted by the UE and accepted, or the correction or bonus token of the target."""


class Piece(NamedTuple):
    """Text of one token."""

    text: str
    origin: str


class ChatAnswer(NamedTuple):
    """A finished answer."""

    text: str
    record: RequestRecord


@dataclass
class Conversation:
    """Turns so far, and what answers the next one.

    Attributes:
        context: positions for conversation and answer together.
        method: protocol of the rounds.
    """

    runner: JobRunner
    prompter: Prompter
    welcome: Welcome
    context: int
    method: str
    sampling: Sampling
    max_tokens: int
    seed: int = 0
    turns: list[Turn] = field(default_factory=list)

    async def ask(self, question: str, tell: Callable[[Piece], None]) -> ChatAnswer:
        """Answer a question; the conversation includes both afterwards.

        Args:
            tell: called with every piece of text as it is committed.

        Raises:
            BadInput: the conversation does not fit the context.
            LinkError: the BS cannot be reached.
        """
        asked = [*self.turns, Turn("user", question)]
        ids = self.prompter.conversation(asked)
        room = self.context - len(ids) - 1
        if room < 1:
            raise BadInput(f"the conversation of {len(ids)} tokens exceeds the context of {self.context}; start anew")
        seed = request_seed(self.seed, self.method, len(self.turns))
        session = await self.runner.session(self.method, self.sampling, seed)
        pieces, said = Detokeniser(self.prompter.tokenizer, ids), []

        def ended(record: RoundRecord) -> None:
            self.runner.observe(record)
            for i, token in enumerate(session.committed[-record.committed :]):
                text = "" if token in self.welcome.end_ids else pieces.push(token)
                if text:
                    said.append(text)
                    tell(Piece(text, DRAFTED if i < record.accepted else TARGET))

        record = await session.decode(ids, min(self.max_tokens, room), self.welcome.end_ids, ended)
        if rest := pieces.flush():
            said.append(rest)
            tell(Piece(rest, TARGET))
        self.turns = [*asked, Turn("assistant", "".join(said).strip())]
        return ChatAnswer("".join(said), record)
