"""Prompt of one request of a vLLM pass, and of the second one where the prefix cache served too many positions."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.bs.engines.base import VerifyRequest


@dataclass(frozen=True, slots=True)
class VllmPrompt:
    """Ids to read, and what to say about the last of their positions."""

    ids: list[int]
    facing: list[int]
    """Drafted token that each of the last positions faces; 0 stands in at the bonus position, which faces none."""
    hidden: bool = False
    logprobs: bool = False
    session: str | None = None
    """Whose keys and values the pass continues; None: nobody's."""

    @classmethod
    def of(cls, request: VerifyRequest) -> VllmPrompt:
        """Committed prefix and drafted tokens; a row for every position from the prefix's last token on."""
        drafted = request.draft.tolist()
        ids = request.prefix.tolist() + drafted
        return cls(ids, [*drafted, 0], request.hidden, request.logprobs, request.session)

    @property
    def rows(self) -> int:
        """Positions to say something about: K+1 for K drafted tokens."""
        return len(self.facing)

    def cuts(self, missing: int, block_size: int) -> list[VllmPrompt]:
        """Prompts that bring back the first `missing` rows, in order: one per block that holds some of them.

        vLLM never takes the block of a prompt's last position from the cache, so this prompt, cut at the end of each
        block in question, has its rows computed, and reads what precedes the block from the cache.
        """
        first = len(self.ids) - self.rows
        end = first + missing
        cuts: list[VllmPrompt] = []
        while end > first:
            start = max(first, (end - 1) // block_size * block_size)
            facing = self.facing[start - first : end - first]
            cuts.insert(0, VllmPrompt(self.ids[:end], facing, self.hidden, self.logprobs))
            end = start
        return cuts
