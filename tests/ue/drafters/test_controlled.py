"""Replayed drafts: right as often as asked for, the same for a seed, rolled back like any drafter's."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.errors import BadInput, ModelError
from testbed.ue.drafters.controlled import ReplayDrafter

PROMPT = [5, 6, 7]
OUTPUT = list(np.random.default_rng(3).integers(0, 50, 4000))


def drafter(alpha: float, seed: int = 0, context: int = 8000) -> ReplayDrafter:
    return ReplayDrafter({tuple(PROMPT): OUTPUT}, vocab_size=50, alpha=alpha, context=context, seed=seed)


def drafted(alpha: float, seed: int = 0) -> list[int]:
    sequence = drafter(alpha, seed).open(PROMPT)
    return [sequence.draft_one().id for _ in OUTPUT]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
def test_it_is_right_as_often_as_asked_for(alpha: float) -> None:
    right = np.mean(np.array(drafted(alpha)) == np.array(OUTPUT))
    assert right == pytest.approx(alpha, abs=4 * (alpha * (1 - alpha) / len(OUTPUT)) ** 0.5)


def test_what_it_drafts_depends_on_the_seed_alone() -> None:
    assert drafted(0.5) == drafted(0.5)
    assert drafted(0.5) != drafted(0.5, seed=1)


def test_after_a_correction_it_goes_on_where_the_target_is() -> None:
    sequence = drafter(1.0).open(PROMPT)
    first = [sequence.draft_one().id for _ in range(4)]
    sequence.commit(2, OUTPUT[2])
    assert sequence.length == len(PROMPT) + 3
    assert first == OUTPUT[:4] and [sequence.draft_one().id for _ in range(3)] == OUTPUT[3:6]
    with pytest.raises(ValueError, match="accepted"):
        sequence.commit(4, 0)
    with pytest.raises(ValueError, match="vocabulary"):
        sequence.commit(0, 50)
    sequence.close()


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(BadInput, match="acceptance rate"):
        drafter(1.5)
    with pytest.raises(BadInput, match="2 ids or more"):
        ReplayDrafter({}, vocab_size=1, alpha=0.5, context=8)
    with pytest.raises(BadInput, match="outputs it was given"):
        drafter(0.5).open([1])
    with pytest.raises(BadInput, match="no distributions"):
        drafter(0.5).open(PROMPT, distributions=True)
    sequence = drafter(0.5, context=4).open(PROMPT)
    sequence.draft_one()
    with pytest.raises(ModelError, match="full"):
        sequence.draft_one()
