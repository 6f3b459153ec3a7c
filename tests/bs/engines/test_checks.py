"""Targets that cannot compute are refused before they serve."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from testbed.bs.engines.checks import PROBED, check_model
from testbed.bs.engines.transformers import TransformersEngine
from testbed.errors import ModelError
from tests.support.refusals import refuse


@pytest.mark.parametrize("token", [1, PROBED - 1])
def test_several_tokens_are_computed_and_not_only_the_first(token: int, random_models: dict[str, Path]) -> None:
    engine = TransformersEngine(random_models["llama"])
    check_model(engine)
    with torch.no_grad():
        engine._model.get_input_embeddings().weight[token] = torch.nan
    refuse(lambda: check_model(engine), ModelError, "not numbers", "damaged")


@pytest.mark.parametrize("angle", [3e38, float("inf"), float("nan")])
def test_positions_whose_angles_are_no_numbers_are_refused(angle: float, random_models: dict[str, Path]) -> None:
    """A single token at position 0 had finite logits, so that the target was served."""
    engine = TransformersEngine(random_models["llama"])
    engine._model.base_model.rotary_emb.inv_freq.fill_(angle)
    refuse(lambda: check_model(engine), ModelError, "not numbers", "config.json")


@pytest.mark.parametrize("positions", [2, 3, PROBED, PROBED + 1])
def test_a_short_context_is_enough(positions: int, random_models: dict[str, Path]) -> None:
    engine = TransformersEngine(random_models["qwen2"], max_model_len=positions, vocab_size=3)
    check_model(engine)
    assert not engine._sessions
