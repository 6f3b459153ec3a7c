"""Rejection sampling with real models: continuations of a tiny random Llama, drafted by another one."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from testbed.protocols.sampling import Sampling
from tests.support.models import make_model
from tests.support.sampled import Rows, chances, p_value, rows, sample

KINDS = ("rejection", "split")


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, Rows]:
    """Log-probabilities of one tiny random Llama, probabilities of another; both flattened, so that much is drawn."""
    from testbed.bs.engines.transformers import TransformersEngine

    folder = tmp_path_factory.mktemp("llamas")
    models = [
        rows(TransformersEngine(make_model("llama", folder / str(seed), seed, vocab_size=6), device="cpu"))
        for seed in (1, 2)
    ]
    return models[0], functools.cache(lambda prefix: np.exp(models[1](prefix)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sampling",
    [*(pytest.param(Sampling(heat), marks=pytest.mark.long) for heat in (2.0, 1.0)), Sampling(2.5, top_k=4, top_p=0.9)],
)
def test_continuations_of_a_llama(llamas: tuple[Rows, Rows], kind: str, sampling: Sampling) -> None:
    target, drafter = llamas
    counts = sample(kind, target, drafter, (1, 2), sampling, count=3000, length=3, window=2)
    assert p_value(counts, chances(target, (1, 2), sampling, 3)) > 1e-4


def test_replacing_a_llamas_tokens_from_the_target_itself_would_be_noticed(
    llamas: tuple[Rows, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, drafter = llamas
    monkeypatch.setattr("testbed.protocols.rejection_sampling.residual", lambda p, q: p)
    counts = sample("split", target, drafter, (1, 2), Sampling(2.0), count=3000, length=3, window=2)
    assert p_value(counts, chances(target, (1, 2), Sampling(2.0), 3)) < 1e-4
