"""Minimal Llama, compared with transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from testbed.models.net import Net
from testbed.models.train import Recipe

SHAPES = {
    "small": Recipe("target", hidden=48, layers=2, heads=3, ffn=80, steps=1),
    "one head": Recipe("target", hidden=8, layers=1, heads=1, ffn=24, steps=1),
    "deep": Recipe("target", hidden=32, layers=5, heads=4, ffn=40, steps=1),
}


def randomized(config: LlamaConfig, dtype: torch.dtype) -> Net:
    """Model with weights large enough for attention, rotation, norms and gates to matter."""
    generator = torch.Generator().manual_seed(3)
    net = Net(config, dtype)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.copy_(1 + 0.3 * noise)
            else:
                weight.copy_(0.5 * noise if "embed" in name else 1.5 * noise / weight.shape[1] ** 0.5)
    return net


def transformers_own(net: Net) -> Any:
    model: Any = LlamaForCausalLM(net.config).float().eval()
    model.load_state_dict({**net.state_dict(), "lm_head.weight": net.model.embed_tokens.weight})
    return model


@pytest.mark.parametrize("shape", list(SHAPES))
@torch.no_grad()
def test_it_computes_what_transformers_computes(shape: str) -> None:
    net = randomized(SHAPES[shape].config(vocab=90, end_id=0), torch.float32)
    ids = torch.randint(0, 90, (3, 37), generator=torch.Generator().manual_seed(4))
    out = transformers_own(net)(ids, output_hidden_states=True)
    hidden = net.hidden(ids)
    torch.testing.assert_close(hidden, out.hidden_states[-1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(net.logits(hidden), out.logits, rtol=1e-4, atol=2e-4)
    assert out.logits.std() > 0.5


@torch.no_grad()
def test_no_position_sees_a_later_one() -> None:
    net = randomized(SHAPES["small"].config(vocab=90, end_id=0), torch.float32)
    ids = torch.randint(0, 90, (1, 20), generator=torch.Generator().manual_seed(4))
    changed = ids.clone()
    changed[0, 12] = (changed[0, 12] + 1) % 90
    before, after = net.hidden(ids)[0], net.hidden(changed)[0]
    torch.testing.assert_close(after[:12], before[:12])
    assert all((after[i] - before[i]).abs().max() > 1e-3 for i in range(12, 20))


def test_parameters_are_float32_under_the_names_of_transformers() -> None:
    net = Net(SHAPES["small"].config(vocab=90, end_id=0))
    model = LlamaForCausalLM(net.config)
    assert {*net.state_dict(), "lm_head.weight"} == set(model.state_dict())
    assert all(p.dtype == torch.float32 for p in net.parameters())
    assert model.lm_head.weight is model.model.embed_tokens.weight  # tied, as in Net


def test_gradients_are_those_of_transformers() -> None:
    net = randomized(SHAPES["small"].config(vocab=90, end_id=0), torch.float32)
    model = transformers_own(net)
    ids = torch.randint(0, 90, (2, 21), generator=torch.Generator().manual_seed(5))
    logits = net.logits(net.hidden(ids[:, :-1]))
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    model(ids, labels=ids).loss.backward()
    theirs = dict(model.named_parameters())
    for name, weight in net.named_parameters():
        torch.testing.assert_close(weight.grad, theirs[name].grad, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_in_bfloat16_it_stays_near() -> None:
    config = SHAPES["small"].config(vocab=90, end_id=0)
    ids = torch.randint(0, 90, (1, 20), generator=torch.Generator().manual_seed(4))
    exact, rough = randomized(config, torch.float32).hidden(ids), randomized(config, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = rough.hidden(ids)
    assert near.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(near.float(), exact, dim=-1).min() > 0.99
