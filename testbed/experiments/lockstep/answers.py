"""Decides whether a mismatch changes the final answer: AutoJudge's criterion, with the target's own continuations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from testbed.experiments.inputs.scorers import Scorer
from testbed.experiments.lockstep.completions import Completer, Paths
from testbed.experiments.lockstep.decoding import Decoding


@dataclass(frozen=True)
class AnswerTask:
    """Completion and scoring of the outputs of a collection.

    Attributes:
        max_tokens: length limit of an output.
        text: decodes output ids.
        scorer: extracts the answer from a text.
    """

    completer: Completer
    max_tokens: int
    text: Callable[[Sequence[int]], str]
    scorer: Scorer


class Answers:
    """The target's final answers from different prefixes of one prompt.

    Every continuation is computed once and serves all mismatches along it.

    Args:
        session: session name for the engine.
        prompt_len: length of the prompt in tokens.
    """

    def __init__(self, task: AnswerTask, session: str, prompt_len: int) -> None:
        self._task, self._session, self._prompt_len = task, session, prompt_len
        self._paths = Paths()
        self.completions = 0
        """Number of continuations computed by the target."""

    def critical(
        self, prefix: Sequence[int], draft: int, target: int, begun: Sequence[int] = ()
    ) -> Decoding[bool | None]:
        """Whether the final answer changes when the draft token replaces the target's after `prefix`; the target
        completes both.

        None: the target's own completion has no answer (it was cut off, or the prompt has none), so that there is
        nothing to compare. A completion that loses the answer changes it.

        Args:
            begun: known start of the target's continuation after the draft token.
        """
        own = yield from self._whole([*prefix, target], (), self._paths.first())
        changed = yield from self._whole([*prefix, draft], begun, own)
        answer = self._answer(own)
        return None if answer is None else answer != self._answer(changed)

    def _whole(self, ids: list[int], begun: Sequence[int], like: Sequence[int]) -> Decoding[list[int]]:
        """Prompt and complete output when the target continues from `ids`."""
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
