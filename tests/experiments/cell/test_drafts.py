"""Drafts of a cell's UEs agree with the target at the same places in virtual and in real time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.experiments.capacity.config import CapacityConfig
from testbed.experiments.cell.parts.drafts import Agreement, RealDrafter, VirtualDrafter
from testbed.experiments.deployment.traffic_ue import LANGUAGE
from testbed.synthetic import VOCAB, next_token
from testbed.ue.drafters.base import Drafter

WINDOW = 5


def accepted(drafter: Drafter, following: Callable[[list[int]], int], prompt: list[int], rounds: int) -> list[int]:
    """Accepted tokens of each round of a response."""
    ids, found = list(prompt), []
    sequence = drafter.open(prompt)
    for _ in range(rounds):
        count = 0
        tokens = [sequence.draft_one().id for _ in range(WINDOW)]
        while count < WINDOW and tokens[count] == following(ids):
            ids.append(tokens[count])
            count += 1
        ids.append(following(ids))
        sequence.commit(count, ids[-1])
        found.append(count)
    sequence.close()
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_both_accept_the_same_tokens_of_every_response(alpha: float) -> None:
    virtual = VirtualDrafter(CapacityConfig(acceptance=alpha), 0, Agreement(3, 7, alpha))
    real = RealDrafter(VOCAB, 8, Agreement(3, 7, alpha))
    responses = []
    for length in (20, 33):
        expected = accepted(virtual, lambda ids: int(LANGUAGE[len(ids)]), LANGUAGE[:length].tolist(), 60)
        words = [(5 * i) % VOCAB for i in range(length)]
        assert accepted(real, lambda ids: next_token(ids, VOCAB, 0), words, 60) == expected
        responses.append(expected)
    if alpha == 0.6:
        assert responses[0] != responses[1]
        mean = sum(map(sum, responses)) / 120
        assert mean == pytest.approx(0.6 * (1 - 0.6**WINDOW) / 0.4, abs=0.35)
