"""Models in a cell: real tokens and hidden states, and a judge with a decision head, at the times of profiles.

Which token follows a prefix does not depend on the radio, so that all UEs of a run in virtual time share one pair with
memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.parts.tasks import PairTasks
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.inputs.profile import Profile
from testbed.experiments.runs.demo import judge_of, judging
from testbed.experiments.runs.virtual import load_models
from testbed.ue.client import Client


class ComputedPair:
    """The loaded pair of a cell, and its judge; raises what `PairTasks` does.

    Attributes:
        tasks: prompts and scorer.
        models: drafter and target.
        judge: that of the base station.
    """

    def __init__(self, config: CellConfig) -> None:
        self.tasks = PairTasks(config, self._own)
        demo = self.tasks.demo
        hidden, self.judge = judging(demo)[1] is not None, judge_of(demo)
        target = Path(target_for(demo.engine, demo.model))
        self.models = load_models(target, demo.engine, demo.dtype, self.tasks.run, self.tasks.work, hidden)
        self._most = demo.max_tokens

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

    def own_outputs(self) -> list[list[int]]:
        """The target's own responses to all prompts, in order."""
        return [self.tasks.own(prompt.ids) for prompt in self.tasks.work.prompts]

    def _own(self, ids: Sequence[int]) -> list[int]:
        return greedy(self.models.engine, ids, self._most, self.models.offer.end_ids)

    def close(self) -> None:
        """Free the models."""
        self.models.close()


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


def greedy(engine: VerifyEngine, prompt: Sequence[int], most: int, ends: Collection[int]) -> list[int]:
    """The tokens that a target decodes alone after a prompt."""
    ids, nothing = list(prompt), np.zeros(0, np.int32)
    while len(ids) < len(prompt) + most and not (len(ids) > len(prompt) and ids[-1] in ends):
        request = VerifyRequest("own", np.array(ids, np.int32), nothing)
        ids.append(int(engine.verify([request])[0].argmax[0]))
    engine.release("own")
    return ids[len(prompt) :]
