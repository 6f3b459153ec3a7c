"""Acceptance in lockstep against the rounds of a base station; judged rounds are in `head/test_judged.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.judging.base import Candidates, StrictJudge
from testbed.experiments.lockstep.acceptance import STRICT, AcceptanceRule, JudgedRule, SampledRule
from testbed.experiments.predictor.collect import TraceDecoder
from testbed.experiments.predictor.traces import Traces
from testbed.protocols import protocol
from testbed.protocols.sampling import Sampling, request_seed
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, client, station

WINDOW, TOKENS, SEED = 5, 40, 3
PROMPTS = [[3, i, 4, 1, 5] for i in range(6)]


def traces(rule: AcceptanceRule) -> Traces:
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    return TraceDecoder(drafter, SyntheticEngine(vocab_size=VOCAB), WINDOW, TOKENS, (), rule).run(PROMPTS, 0)


@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(1.3, top_k=40, top_p=0.9)])
async def test_sampled_rounds_are_those_of_a_base_station(sampling: Sampling) -> None:
    """Every token drafted, accepted and rejected, since both draw the same random numbers."""
    wanted = []
    async with station() as (_, address), client(address) as connection:
        for number, prompt in enumerate(PROMPTS):
            session = DecodingSession(
                connection, SyntheticDrafter(vocab_size=VOCAB, alpha=0.7), protocol("rejection"), FixedWindow(WINDOW),
                sampling=sampling, seed=request_seed(SEED, "rejection", number),
            )  # fmt: skip
            record = await session.decode(prompt, TOKENS, ())
            wanted += [(number, i, r.drafted, r.accepted) for i, r in enumerate(record.rounds)]
    found = traces(SampledRule(sampling, SEED))
    assert 0 < found.accepted.mean() < 1
    for number, round_, drafted, accepted in wanted:
        labels = found.accepted[(found.prompt == number) & (found.round == round_)]
        later = np.sum((found.later_prompt == number) & (found.later_round == round_))
        assert labels.tolist() == [1] * accepted + [0] * (accepted < drafted) and len(labels) + later == drafted
    assert len(set(zip(found.prompt.tolist(), found.round.tolist(), strict=True))) == len(wanted)


class KeepAll(StrictJudge):
    """Keeps every mismatch."""

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        return [np.ones(len(one.draft_ids), np.bool_) for one in batch]


def test_labels_are_those_of_the_judge() -> None:
    strict, kept = traces(STRICT), traces(JudgedRule(KeepAll(), 0.5))
    assert strict.accepted.mean() < 1 and kept.accepted.all() and not len(kept.later_prompt)
    unasked = traces(JudgedRule(KeepAll(), 0.0))  # θ = 0 is strict under any judge
    np.testing.assert_array_equal(unasked.accepted, strict.accepted)
