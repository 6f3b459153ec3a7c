"""Acceptance of the bundled pair, against transformers' assisted generation: same models, same prompts, same window."""

from __future__ import annotations

import itertools

import pytest

from testbed.bs.engines.target import describe
from testbed.config import RunConfig
from testbed.experiments.runs.prepare import prepare
from testbed.models.bundle import bundled
from tests.support.assisted import Assisted, figures, own_rounds


@pytest.mark.parametrize(
    ("prompts", "tokens", "window"),
    [
        (3, 48, 4),
        pytest.param(10, 96, 4, marks=pytest.mark.long),
        pytest.param(10, 96, 8, marks=pytest.mark.long),
    ],
)
def test_acceptance_is_that_of_transformers(prompts: int, tokens: int, window: int) -> None:
    target, drafter = (bundled().require(name) for name in ("target", "drafter_hf"))
    config = RunConfig(
        methods=("greedy",), window=window, limit=prompts, max_tokens=tokens, warmup=0, kv_type="f32"
    )  # fmt: skip
    work = prepare(config)
    own = itertools.chain.from_iterable(own_rounds(target, config, work))
    assisted, ends = Assisted(target, drafter, window), describe(str(target)).end_ids
    theirs = itertools.chain.from_iterable(assisted.rounds(prompt.ids, tokens, ends) for prompt in work.prompts)
    acceptance, length = figures(list(theirs))
    assert 0.3 < acceptance < 1
    assert figures(list(own)) == pytest.approx((acceptance, length), rel=0.01)
