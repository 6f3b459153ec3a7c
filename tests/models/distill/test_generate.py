"""Answers of many prompts at a time against transformers' own generation of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM

from testbed.errors import ModelError
from testbed.models.distill.generate import BatchGenerator, Generation
from tests.support.models import make_model

ROWS, REAL = 160, 150
PROMPTS = [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [11, 12], [90, 91, 92, 93]]


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(request.param, tmp_path_factory.mktemp(request.param), 3, vocab_size=ROWS)


def test_greedy_answers_are_those_of_each_prompt_alone(model: Path) -> None:
    """Many ids end an answer, so that answers have different lengths."""
    reference = AutoModelForCausalLM.from_pretrained(model).eval()
    ends = set(range(0, ROWS, 12))
    found = BatchGenerator(model, "float32", REAL, "cpu").answers(PROMPTS, Generation(24, ends, 5))
    for prompt, answer in zip(PROMPTS, found, strict=True):
        text = list(prompt)
        while len(text) - len(prompt) < 24 and not (len(text) > len(prompt) and text[-1] in ends):
            with torch.inference_mode():
                logs = reference(torch.tensor([text])).logits[0, -1, :REAL].log_softmax(-1)
            row = len(text) - len(prompt)
            best = logs.topk(5)
            assert answer.top[row].tolist() == best.indices.tolist()
            assert np.allclose(answer.logprobs[row], best.values.numpy(), atol=2e-2)
            text.append(int(best.indices[0]))
        assert answer.output.tolist() == text[len(prompt) :]
    assert len({len(one.output) for one in found}) > 1


def test_samples_follow_the_distribution_at_their_temperature(model: Path) -> None:
    generator = BatchGenerator(model, "float32", REAL, "cpu")
    how = Generation(1, (), 1, temperature=0.5, seed=4)
    found = [int(one.output[0]) for one in generator.answers([PROMPTS[0]] * 6000, how)]
    assert found == [int(one.output[0]) for one in generator.answers([PROMPTS[0]] * 6000, how)]
    reference = AutoModelForCausalLM.from_pretrained(model).eval()
    with torch.inference_mode():
        shares = (reference(torch.tensor(PROMPTS[:1])).logits[0, -1, :REAL].double() / 0.5).softmax(-1).numpy()
    common = np.flatnonzero(shares * 6000 >= 8)
    counts = np.array([found.count(token) for token in common])
    observed, expected = [*counts, 6000 - counts.sum()], [*shares[common], 1 - shares[common].sum()]
    assert chisquare(observed, 6000 * np.array(expected)).pvalue > 1e-3


def test_a_model_that_cannot_be_loaded_is_one_error(tmp_path: Path) -> None:
    (make_model("llama", tmp_path, 0) / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="transformers cannot load it"):
        BatchGenerator(tmp_path, "float32", REAL)
