"""Whether a mismatch matters: AutoJudge's question, asked of the target itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from testbed.experiments.lockstep.completions import Completer, Paths
from testbed.experiments.lockstep.scorers import Scorer
from testbed.experiments.lockstep.walk import Walk


@dataclass(frozen=True)
class AnswerTask:
    """What the outputs of a collection have in common.

    Attributes:
        max_tokens: length at which an output is cut off.
        text: decodes output ids.
        scorer: reads the answer out of a text.
    """

    completer: Completer
    max_tokens: int
    text: Callable[[Sequence[int]], str]
    scorer: Scorer


class Answers:
    """Final answers that the target comes to from prefixes of one prompt.

    Every continuation is computed once: the one behind a prefix serves all mismatches along it.

    Args:
        session: name for the engine.
        prompt_len: tokens of the prompt.
    """

    def __init__(self, task: AnswerTask, session: str, prompt_len: int) -> None:
        self._task, self._session, self._prompt_len = task, session, prompt_len
        self._paths = Paths()
        self.completions = 0
        """Continuations that the target was made to compute."""

    def critical(self, prefix: Sequence[int], draft: int, target: int, begun: Sequence[int] = ()) -> Walk[bool]:
        """Whether the final answer changes if the draft token stands after `prefix` instead of the target's, and the
        target completes both.

        Two outputs without an answer (cut off before it, or never meant to have one) agree: there is nothing that the
        draft token could have changed. One with and one without differ.

        Args:
            begun: what the target is known to say after the draft token, as far as it is known.
        """
        own = yield from self._whole([*prefix, target], (), self._paths.first())
        changed = yield from self._whole([*prefix, draft], begun, own)
        return self._answer(own) != self._answer(changed)

    def _whole(self, ids: list[int], begun: Sequence[int], like: Sequence[int]) -> Walk[list[int]]:
        """Prompt and output that the target makes of a prefix."""
        known = self._paths.follow(ids)
        if known is not None:
            return known
        self.completions += 1
        ends, end = self._task.completer.ends, self._prompt_len + self._task.max_tokens
        whole = ids if ids[-1] in ends else (ids + self._task.completer.up_to_end(list(begun)))[:end]
        if whole[-1] not in ends:
            whole = whole + (yield from self._task.completer.complete(self._session, whole, end - len(whole), like))
        self._paths.add(len(ids), whole)
        return whole

    def _answer(self, whole: Sequence[int]) -> Hashable:
        return self._task.scorer(self._task.text(whole[self._prompt_len :]))
