"""Honest UEs beside hostile ones: what they decode must not depend on who else is served."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from testbed.protocols import PROTOCOLS, TARGET_ONLY, protocol
from testbed.protocols.methods import run_method
from testbed.protocols.sampling import Sampling
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.registry import HINTED

TOKENS = 20
LOSSY = 0.5
"""θ of the sessions that are judged; their outputs are compared with undisturbed ones instead of the target's."""
Job = tuple[str, float, bool]
"""Protocol, θ or temperature, and whether it takes hints."""


def jobs() -> list[Job]:
    """Every protocol: without loss, with it, and by the windows that the base station hints."""
    found: list[Job] = [(TARGET_ONLY, 0.0, False)]
    for kind, entry in PROTOCOLS.items():
        found += [(kind, 0.0, False), (kind, 0.0, True)]
        if entry.judged or entry.sampled or entry.coupled:
            found.append((kind, LOSSY, False))
    return found


async def decode(client: Client, job: Job, prompt: list[int]) -> list[int]:
    """The output of one request."""
    kind, level, hinted = job
    if kind == TARGET_ONLY:
        return (await decode_remotely(client, prompt, TOKENS, ())).token_ids
    assert client.welcome is not None
    drafter, judged = SyntheticDrafter(vocab_size=client.welcome.vocab_size, alpha=0.7), PROTOCOLS[kind].judged
    session = DecodingSession(
        client, drafter, protocol(kind), HINTED.make(4, None) if hinted else FixedWindow(4),
        threshold=level if judged else 0.0, sampling=run_method(kind).sampling(Sampling(level)), seed=3,
        lookahead=sum(prompt) % 2,
    )  # fmt: skip
    return (await session.decode(prompt, TOKENS, ())).token_ids


class Witness:
    """A UE that decodes the same requests over and over.

    Args:
        client: its connection.

    Attributes:
        compared: number of outputs that were as they should be.
    """

    def __init__(self, client: Client) -> None:
        self._client, self.compared = client, 0
        self._expected: dict[tuple[Job, int], list[int]] = {}

    async def learn(self, prompts: int = 1) -> None:
        """Decode everything once while nobody else is served; outputs without loss must equal the target's.

        Raises:
            AssertionError: one does not.
        """
        for number in range(prompts):
            for job in jobs():
                output = await decode(self._client, job, prompt_of(number))
                self._expected[job, number] = output
                if not job[1]:
                    assert output == self._expected[(TARGET_ONLY, 0.0, False), number], job

    async def watch(self, done: Callable[[], bool]) -> None:
        """Decode until it is done, and at least everything once.

        Raises:
            AssertionError: an output differs.
        """
        for i, (job, number) in enumerate(itertools.cycle(self._expected)):
            if i >= len(self._expected) and done():
                return
            output = await decode(self._client, job, prompt_of(number))
            assert output == self._expected[job, number], (job, number)
            self.compared += 1


def prompt_of(number: int) -> list[int]:
    """A prompt of the synthetic language."""
    return np.random.default_rng(number).integers(1, 300, 3 + number).tolist()
