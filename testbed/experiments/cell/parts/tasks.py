"""Prompts that a pair decodes in a cell, and what its responses are compared with."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from testbed.bs.engines.registry import ENGINES
from testbed.bs.judging.registry import JUDGES
from testbed.config import DemoConfig
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.sections import CellModels
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.inputs.marks import CODE, Mark, marker
from testbed.experiments.runs.demo import check_demo, judging, run_config
from testbed.experiments.runs.prepare import Prompt, prepare
from testbed.protocols import TARGET_ONLY
from testbed.ue.records import RequestRecord

MOST_UES = 64
"""UEs of one pair, each with a sequence of its own."""
Own = Callable[[Sequence[int]], list[int]]
"""The target's own response to a prompt."""


class PairTasks:
    """Prompts of a cell with models, and its scorer.

    Args:
        own: asked once for each prompt.
        at_once: responses that one drafter decodes at a time. Default: those of all UEs.

    Attributes:
        demo: the models of the cell, as those of a demo.
        run: how a UE decodes.
        work: prompts and drafter.

    Raises:
        BadInput: models that cannot be used, or more UEs than a pair serves.
    """

    def __init__(self, config: CellConfig, own: Own, at_once: int | None = None) -> None:
        assert config.models is not None
        decoding = [group for group in config.ues if group.traffic == "tokens"]
        ues = sum(group.count for group in decoding)
        if not 1 <= ues <= MOST_UES:
            raise BadInput(f"models decode for 1 to {MOST_UES} UEs with `traffic: tokens`, not {ues}")
        if not ENGINES.choose(config.models.engine).needs_model:
            raise BadInput(f"engine {config.models.engine} has no model: leave `models` out")
        if config.models.scorer == CODE:
            raise BadInput("scorer code runs programs that the model wrote, which a cell does not")
        self.demo = demo_of(config.models, decoding)
        check_demo(self.demo)
        self.run = msgspec.structs.replace(run_config(self.demo), concurrency=at_once or ues)
        self.lossless = JUDGES[judging(self.demo)[0]].lossless
        self.work = prepare(self.run)
        self._mark, self._decode, self._own = marker(self.demo.scorer), own, dict[tuple[int, ...], list[int]]()

    def exact(self, group: UeGroup) -> bool:
        """Whether a group's responses must be the target's own."""
        return not group.samples and group.method.exact(group.threshold, self.lossless)

    def own(self, ids: Sequence[int]) -> list[int]:
        """The target's own response to a prompt."""
        key = tuple(ids)
        if key not in self._own:
            self._own[key] = self._decode(ids)
        return self._own[key]

    def mark(self, prompt: Prompt, ids: Sequence[int]) -> Mark | None:
        """What the scorer says of a response; None: there is nothing to compare with."""
        return self._mark(prompt.example, self._text(ids), self._text(self.own(prompt.ids)))

    def _text(self, ids: Sequence[int]) -> str:
        return self.work.prompter.text(list(ids)) if self.work.prompter else ""


class UeTasks:
    """Requests of one UE: prompts drawn at random, and what their responses are compared with.

    Args:
        exact: whether responses must be the target's own.

    Attributes:
        lossy: those of them that were not.
    """

    def __init__(self, tasks: PairTasks, tally: UeTally, exact: bool) -> None:
        self._tasks, self._tally, self._exact = tasks, tally, exact
        self._asked, self.lossy = deque[Prompt](), 0

    def next(self, dice: random.Random) -> tuple[int, int]:
        """Tokens of the next prompt, and of the target's own response to it."""
        one = dice.choice(self._tasks.work.prompts)
        self._asked.append(one)
        return len(one.ids), len(self._tasks.own(one.ids))

    def prompt(self, length: int) -> list[int]:
        """Ids of the prompt that was drawn last."""
        return self._asked[-1].ids

    def seen(self, ids: Sequence[int], record: RequestRecord) -> None:
        """Compare a response, in order of the requests, with the target's own."""
        prompt, own = self._asked.popleft(), self._tasks.own(ids)
        same = record.token_ids == own
        self.lossy += self._exact and not same
        found, wanted = (self._tasks.mark(prompt, answer) for answer in (record.token_ids, own))
        self._tally.compared(same, None if found is None or wanted is None else (found.right, wanted.right))


def demo_of(models: CellModels, groups: Sequence[UeGroup]) -> DemoConfig:
    """The models of a cell as a demo's: it says what goes together, and which judge is meant."""
    shared = set(CellModels.__struct_fields__) & set(DemoConfig.__struct_fields__)
    return DemoConfig(
        **{name: getattr(models, name) for name in shared},
        model=models.target,
        methods=tuple(dict.fromkeys(group.protocol for group in groups)) or (TARGET_ONLY,),
        threshold=max((group.threshold for group in groups), default=0.0),
        channel="kind=virtual,profile=wisv",
    )
