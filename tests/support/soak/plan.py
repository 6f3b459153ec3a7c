"""Plan of a soak test: duration, number of UEs, faults, and the jobs that are decoded repeatedly."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from testbed.protocols import PROTOCOLS, TARGET_ONLY
from testbed.synthetic import next_token

VOCAB = 512
TIMEOUT_S = 90.0
TRICKS = {"reset": 5, "kill": 2, "silent": 2, "garbage": 2}
"""Faults, with their relative frequencies."""


@dataclass(frozen=True)
class Plan:
    """Duration, number of UEs, and load."""

    seconds: float
    ues: int = 32
    seed: int = 0
    jobs: int = 24
    fault_every_s: float = 0.5
    draft_s: float = 0.02
    """Time per drafted token."""
    sample_s: float = 0.5


class Job(NamedTuple):
    """A request that UEs decode."""

    kind: str
    prompt: tuple[int, ...]
    tokens: int
    seed: int

    @property
    def own(self) -> list[int] | None:
        """The target's own greedy output; None if tokens are sampled."""
        if self.kind in PROTOCOLS and PROTOCOLS[self.kind].sampled:
            return None
        ids = list(self.prompt)
        for _ in range(self.tokens):
            ids.append(next_token(ids, VOCAB, 0))
        return ids[len(self.prompt) :]


def make_jobs(plan: Plan) -> list[Job]:
    """Jobs of every method, with prompts and outputs of many lengths."""
    rng, kinds = random.Random(f"soak/jobs/{plan.seed}"), (*PROTOCOLS, TARGET_ONLY)
    return [
        Job(kinds[i % len(kinds)], tuple(rng.randrange(VOCAB) for _ in range(rng.randint(2, 120))),
            rng.randint(10, 50), i)
        for i in range(plan.jobs)
    ]  # fmt: skip
