"""Conversations of a run: later turns have the target's own answers in their context, the same for every method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example, prompt_ids
from testbed.experiments.runs.prepare import Prompt, Workload, room
from testbed.protocols import TARGET_ONLY
from testbed.protocols.messages import Welcome
from testbed.ue.run import JobRunner, Outcome, OwnOutput


class OwnOutputs:
    """The target's own outputs: those of `target-only` where the run has them, else decoded beside it."""

    def __init__(self, known: dict[OwnOutput, list[int]], runner: JobRunner, welcome: Welcome, most: int) -> None:
        self._known, self._runner, self._end_ids, self._most = known, runner, welcome.end_ids, most

    def learn(self, outcomes: Iterable[Outcome]) -> None:
        """Take over the outputs of `target-only`, unless they are drawn independently."""
        if not self._runner.draws(TARGET_ONLY):
            alone = [o for o in outcomes if o.method == TARGET_ONLY]
            self._known |= {
                self._runner.own_output(TARGET_ONLY, o.request, self._most): o.record.token_ids for o in alone
            }

    async def of(self, which: OwnOutput, ids: Sequence[int]) -> list[int]:
        """Ids of the target's own output after a prompt."""
        if which not in self._known:
            self._known[which] = (await self._runner.own(ids, which, self._end_ids)).token_ids
        return self._known[which]


class Conversations:
    """Prompts of a run by request. Those that follow the model's own answers have their ids once `begin` was called for
    their stage: the context has the target's own greedy answers, so that every method decodes the same prompts.
    """

    def __init__(self, config: RunConfig, work: Workload, welcome: Welcome) -> None:
        self._work, self._most, self._positions = work, config.max_tokens, welcome.max_positions
        self._ids: dict[int, list[int]] = {}
        for prompt in work.prompts:
            longest = len(prompt.ids) + config.max_tokens * len(prompt.example.unanswered)
            self._check(longest)

    @property
    def stages(self) -> range:
        """Numbers of the stages: all prompts of one can be decoded once those of the stages before are answered."""
        return range(1 + max(stage_of(prompt.example) for prompt in self._work.prompts))

    def at(self, stage: int) -> list[int]:
        """Requests of a stage."""
        return [i for i, prompt in enumerate(self._work.prompts) if stage_of(prompt.example) == stage]

    def ids(self, request: int) -> list[int]:
        """Ids of a prompt."""
        return self._ids[request]

    async def begin(self, stage: int, own: OwnOutputs) -> None:
        """Build the prompts of a stage.

        Raises:
            BadInput: a prompt that is too long for the target or the drafter.
        """
        for request in self.at(stage):
            prompt = self._work.prompts[request]
            self._ids[request] = await self._with_answers(request, prompt, own) if stage else prompt.ids

    async def _with_answers(self, request: int, prompt: Prompt, own: OwnOutputs) -> list[int]:
        """Ids of a prompt with the target's own answers in its context."""
        prompter, example = self._work.prompter, prompt.example
        assert prompter is not None
        answers = {}
        for turn in example.unanswered:
            before = request - example.turn + turn
            found = await own.of(OwnOutput(before, self._most), self._ids[before])
            answers[turn] = prompter.text(found).strip()
        ids = prompt_ids(prompter, example, answers)
        self._check(len(ids))
        if len(ids) > room(prompt, self._most):
            raise BadInput(f"the answers before prompt {request} have more tokens as a prompt than as an output")
        return ids

    def _check(self, length: int) -> None:
        if length + self._most + 1 > self._positions:
            raise BadInput(
                f"a prompt of {length} tokens and {self._most} output tokens exceed the target's context of "
                f"{self._positions}; shorten it or lower --max-tokens"
            )


def stage_of(example: Example) -> int:
    """Number of the turn of a prompt that needs the model's own answers, else 0."""
    return example.turn if example.unanswered else 0
