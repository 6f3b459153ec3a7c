"""Models in a cell: real tokens and hidden states, and a judge with a decision head, at the times of profiles.

Which token follows a prefix does not depend on the radio, so that all UEs share one pair with memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.bs.engines.registry import ENGINES
from testbed.bs.judging.registry import JUDGES
from testbed.config import DemoConfig
from testbed.errors import BadInput, EngineError
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.sections import CellModels
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.inputs.marks import CODE, Mark, marker
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.inputs.profile import Profile
from testbed.experiments.runs.demo import check_demo, judge_of, judging, run_config
from testbed.experiments.runs.prepare import Prompt, prepare
from testbed.experiments.runs.virtual import load_models
from testbed.protocols import TARGET_ONLY
from testbed.ue.client import Client
from testbed.ue.records import RequestRecord

MOST_UES = 64
"""UEs of one pair, each with a sequence of its own."""


class ComputedPair:
    """The pair of a cell, its prompts and its judge.

    Attributes:
        models: drafter and target.
        judge: that of the base station.
    """

    def __init__(self, config: CellConfig) -> None:
        assert config.models is not None
        decoding = [group for group in config.ues if group.traffic == "tokens"]
        ues = sum(group.count for group in decoding)
        if ues > MOST_UES:
            raise BadInput(f"models decode for at most {MOST_UES} UEs, not {ues}")
        if not ENGINES.choose(config.models.engine).needs_model:
            raise BadInput(f"engine {config.models.engine} has no model: leave `models` out")
        if config.models.scorer == CODE:
            raise BadInput("scorer code runs programs that the model wrote, which a cell does not")
        demo = demo_of(config.models, decoding)
        check_demo(demo)
        run = msgspec.structs.replace(run_config(demo), concurrency=ues)
        kind, head = judging(demo)
        self.lossless, self.judge = JUDGES[kind].lossless, judge_of(demo)
        self._work = prepare(run)
        self._most, self._mark = demo.max_tokens, marker(demo.scorer)
        target = Path(target_for(demo.engine, demo.model))
        self.models = load_models(target, demo.engine, demo.dtype, run, self._work, hidden=head is not None)
        self._own: dict[tuple[int, ...], list[int]] = {}

    def computing(self, profile: Profile) -> dict[str, Any]:
        """Arguments of the `TrafficRunner` of a base station with this profile."""
        head_s = 0.0 if profile.head is None else profile.head.position_s
        return {"compute": self.models.engine.verify, "forget": self.models.engine.release, "head_s": head_s}

    async def greet(self, client: Client) -> None:
        """Connect a UE to the base station."""
        await client.connect(self.models.offer.tokenizer, self.models.drafter.vocab_size)

    def decoding(self, ue: LoadUe, group: UeGroup) -> LoadUe:
        """A UE that decodes to an end of the target's, or to the longest response."""
        ends = self.models.offer.end_ids
        return dataclasses.replace(ue, end_ids=ends, most_tokens=self._most, threshold=group.threshold)

    def exact(self, group: UeGroup) -> bool:
        """Whether a group's responses must be the target's own."""
        return not group.samples and group.method.exact(group.threshold, self.lossless)

    def draw(self, dice: random.Random) -> Prompt:
        """A prompt at random."""
        return dice.choice(self._work.prompts)

    def own(self, ids: Sequence[int]) -> list[int]:
        """The target's own response to a prompt."""
        key = tuple(ids)
        if key not in self._own:
            self._own[key] = greedy(self.models.engine, ids, self._most, self.models.offer.end_ids)
        return self._own[key]

    def mark(self, prompt: Prompt, ids: Sequence[int]) -> Mark | None:
        """What the scorer says of a response; None: there is nothing to compare with."""
        text = self._text(ids)
        return self._mark(prompt.example, text, self._text(self.own(prompt.ids)))

    def _text(self, ids: Sequence[int]) -> str:
        return self._work.prompter.text(list(ids)) if self._work.prompter else ""

    def close(self) -> None:
        """Free the models."""
        self.models.close()


class ComputedWork:
    """Requests of one UE: prompts drawn at random, and what their responses are compared with.

    Args:
        exact: whether responses must be the target's own.
    """

    def __init__(self, pair: ComputedPair, tally: UeTally, exact: bool) -> None:
        self._pair, self._tally, self._exact = pair, tally, exact
        self._asked = deque[Prompt]()

    def next(self, dice: random.Random) -> tuple[int, int]:
        """Tokens of the next prompt, and of the target's own response to it."""
        one = self._pair.draw(dice)
        self._asked.append(one)
        return len(one.ids), len(self._pair.own(one.ids))

    def prompt(self, length: int) -> list[int]:
        """Ids of the prompt that was drawn last."""
        return self._asked[-1].ids

    def seen(self, ids: Sequence[int], record: RequestRecord) -> None:
        """Compare a response, in order of the requests, with the target's own.

        Raises:
            EngineError: it must be the target's own, and differs.
        """
        prompt, own = self._asked.popleft(), self._pair.own(ids)
        same = record.token_ids == own
        if self._exact and not same:
            raise EngineError("a response differs from the target's own output")
        found, wanted = (self._pair.mark(prompt, answer) for answer in (record.token_ids, own))
        self._tally.compared(same, None if found is None or wanted is None else (found.right, wanted.right))


@contextlib.contextmanager
def computed_pair(config: CellConfig) -> Iterator[ComputedPair | None]:
    """The loaded pair of a cell, freed at the end; None: its tokens are synthetic.

    Raises:
        BadInput: models that cannot be used, or more UEs than a pair serves.
    """
    if config.models is None:
        yield None
        return
    pair = ComputedPair(config)
    try:
        yield pair
    finally:
        pair.close()


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


def greedy(engine: VerifyEngine, prompt: Sequence[int], most: int, ends: Collection[int]) -> list[int]:
    """The tokens that a target decodes alone after a prompt."""
    ids, nothing = list(prompt), np.zeros(0, np.int32)
    while len(ids) < len(prompt) + most and not (len(ids) > len(prompt) and ids[-1] in ends):
        request = VerifyRequest("own", np.array(ids, np.int32), nothing)
        ids.append(int(engine.verify([request])[0].argmax[0]))
    engine.release("own")
    return ids[len(prompt) :]
