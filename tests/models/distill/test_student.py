"""Students: what they keep of their target, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from testbed.errors import BadInput, ModelError
from testbed.models.distill.student import StudentShape, check_student, chosen_layers, make_student
from tests.support.models import make_model

IDS = torch.arange(1, 40)[None]


@pytest.mark.parametrize(
    ("text", "layers"),
    [("1", (0,)), ("2", (0, 29)), ("4", (0, 10, 19, 29)), ("0,3,7", (0, 3, 7)), ("30", tuple(range(30)))],
)
def test_layers_are_a_number_or_indices(text: str, layers: tuple[int, ...]) -> None:
    assert chosen_layers(text, 30) == layers


@pytest.mark.parametrize("text", ["0", "31", "-1", "three", "", "3,2", "2,2", "0,30", "1.5"])
def test_other_layers_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="layers"):
        chosen_layers(text, 30)


@pytest.mark.parametrize("kind", ["llama", "llama-tied", "qwen2", "qwen2-tied", "qwen3", "qwen3-tied"])
def test_a_student_with_all_layers_is_the_target(random_models: dict[str, Path], kind: str) -> None:
    target = AutoModelForCausalLM.from_pretrained(random_models[kind])
    student = make_student(random_models[kind], StudentShape((0, 1)))
    with torch.inference_mode():
        assert torch.equal(student(IDS).logits, target(IDS).logits)


@pytest.mark.parametrize("kind", ["llama", "qwen2-tied"])
def test_fewer_ids_have_the_logits_of_their_rows(random_models: dict[str, Path], kind: str) -> None:
    ids = (2, 3, 5, 7, 11, 13, 200)
    target = AutoModelForCausalLM.from_pretrained(random_models[kind])
    student = make_student(random_models[kind], StudentShape((0, 1), ids=ids))
    with torch.inference_mode():
        theirs = target(torch.tensor([[5, 200, 3]])).logits[..., list(ids)]
        assert torch.allclose(student(torch.tensor([[2, 6, 1]])).logits, theirs, atol=1e-5)


def test_one_layer_is_that_layer(tmp_path: Path) -> None:
    target = make_model("qwen3", tmp_path, 3, num_hidden_layers=4)
    weights = AutoModelForCausalLM.from_pretrained(target).state_dict()
    student = make_student(target, StudentShape((1, 3))).state_dict()
    for place, index in enumerate((1, 3)):
        name = "self_attn.q_norm.weight"
        assert torch.equal(student[f"model.layers.{place}.{name}"], weights[f"model.layers.{index}.{name}"])
    assert not any(name.startswith("model.layers.2") for name in student)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3-tied"])
def test_a_narrower_net_keeps_what_it_can_of_the_embedding(random_models: dict[str, Path], kind: str) -> None:
    target = AutoModelForCausalLM.from_pretrained(random_models[kind]).state_dict()["model.embed_tokens.weight"]
    student = make_student(random_models[kind], StudentShape((0,), hidden=64))
    mine = student.state_dict()["model.embed_tokens.weight"]
    assert student.config.num_hidden_layers == 1 and mine.shape == (len(target), 64)
    total, kept = target.square().sum(), mine.square().sum()
    best = torch.linalg.svdvals(target)[:64].square().sum()
    assert torch.isclose(kept, best, rtol=1e-4) and kept < total
    assert torch.isfinite(student(IDS).logits).all()


@pytest.mark.parametrize("hidden", [0, 100, 128, 160])
def test_hidden_dimensions_that_cannot_be_stored_are_refused(random_models: dict[str, Path], hidden: int) -> None:
    with pytest.raises(BadInput, match="multiple of 32 below the target's 128"):
        check_student(random_models["llama"], StudentShape((0,), hidden=hidden), quantised=True)


def test_a_target_that_llama_cpp_would_not_run_is_refused(tmp_path: Path) -> None:
    target = make_model("qwen3-moe", tmp_path, 1)
    with pytest.raises(ModelError, match="cannot export"):
        check_student(target, StudentShape((0,)), quantised=True)


def test_rows_that_fill_no_block_are_refused_where_blocks_are_stored(tmp_path: Path) -> None:
    target = make_model("llama", tmp_path, 1, intermediate_size=200)
    check_student(target, StudentShape((0,)), quantised=False)
    with pytest.raises(ModelError, match="--gguf f16"):
        check_student(target, StudentShape((0,)), quantised=True)
