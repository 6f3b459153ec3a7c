"""Damaged models are refused in one line: each file of a target, of a drafter and of a head, damaged in every way."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from testbed.bs.serve import _load_all
from testbed.config import ServeConfig
from testbed.errors import BadInput, ModelError, TestbedError
from testbed.llama.context import LlamaContext, LlamaOptions
from testbed.models.bundle import bundled
from testbed.optim.pass_time import Coefficients
from testbed.ue.prompts import Prompter, Turn
from tests.support.refusals import refuse

Damage = Callable[[Path], None]


def _write(data: bytes | str) -> Damage:
    return lambda path: path.write_bytes(data.encode() if isinstance(data, str) else data) and None


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Damage] = {
    "truncated": _truncated,
    "empty": lambda path: path.write_bytes(b"") and None,
    "binary": _write(bytes(range(256)) * 40),
    "list": _write("[1, 2]"),
    "object": _write("{}"),
    "text": _write('"x"'),
    "null": _write("null"),
    "nested": _write("[" * 100_000),
}
HARMLESS = {
    ("generation_config.json", "object"),  # nothing in it is required
    ("tokenizer_config.json", "object"),
    ("chat_template.jinja", "truncated"),
    *(("chat_template.jinja", name) for name in ("empty", "list", "object", "text", "null", "nested")),
}
"""Damages without effect on the target or the prompt; a chat template of any text is valid."""
VALUES: list[tuple[str, dict[str, Any]]] = [
    ("config.json", {"vocab_size": "x"}),
    ("config.json", {"vocab_size": -1}),
    ("config.json", {"vocab_size": 2**70}),
    ("config.json", {"vocab_size": [300]}),
    ("config.json", {"vocab_size": 10}),
    ("config.json", {"max_position_embeddings": None}),
    ("config.json", {"max_position_embeddings": {}}),
    ("config.json", {"hidden_size": 0}),
    ("config.json", {"hidden_size": 96}),
    ("config.json", {"num_attention_heads": 0}),
    ("config.json", {"num_hidden_layers": "x"}),
    ("config.json", {"num_hidden_layers": 99}),
    ("config.json", {"num_hidden_layers": 3}),
    ("config.json", {"num_hidden_layers": 2**31}),
    ("config.json", {"num_hidden_layers": 0}),
    ("config.json", {"intermediate_size": 2**21}),
    ("config.json", {"vocab_size": 2**24}),
    ("config.json", {"architectures": 5}),
    ("config.json", {"architectures": "x"}),
    ("config.json", {"architectures": {"a": 1}}),
    ("config.json", {"architectures": [7]}),
    ("config.json", {"text_config": [1]}),
    ("config.json", {"rms_norm_eps": float("nan")}),
    ("generation_config.json", {"eos_token_id": "x"}),
    ("generation_config.json", {"eos_token_id": ["x"]}),
    ("generation_config.json", {"eos_token_id": 1.5}),
    ("generation_config.json", {"eos_token_id": -7}),
    ("generation_config.json", {"eos_token_id": 2**70}),
    ("generation_config.json", {"eos_token_id": 2**31 - 1}),
    ("generation_config.json", {"eos_token_id": [0] * 3000}),
    ("tokenizer.json", {"model": []}),
    ("tokenizer.json", {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}),
    ("tokenizer.json", {"added_tokens": "x"}),
]
FILES = ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A copy of a target that a test may damage."""
    return Path(shutil.copytree(bundled().require("target"), tmp_path / "target"))


def serve(target: Path, engine: str = "transformers", **more: Any) -> None:
    """Load a target as `bs serve` does."""
    known = Coefficients(0.0, 0.0, 0.0, 1.0)
    _load_all(ServeConfig(engine=engine, model=str(target), threads=1, **more), known, None).engine.close()


def one_line(call: Callable[[], object]) -> None:
    """Call, and expect an error that the command line shows in one line."""
    with pytest.raises(TestbedError):
        call()


def test_an_undamaged_target_is_served(target: Path) -> None:
    serve(target)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_target_with_a_damaged_file_is_refused(target: Path, name: str, damage: str) -> None:
    DAMAGES[damage](target / name)
    if (name, damage) in HARMLESS:
        serve(target)
    else:
        one_line(lambda: serve(target))


@pytest.mark.parametrize(("name", "values"), VALUES, ids=[f"{name}-{json.dumps(v)[:60]}" for name, v in VALUES])
def test_a_target_with_a_wrong_value_is_refused(target: Path, name: str, values: dict[str, Any]) -> None:
    path = target / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    one_line(lambda: serve(target))


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("tensor", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
def test_weights_that_are_not_numbers_are_not_served(target: Path, tensor: str, number: float) -> None:
    weights = load_file(target / "model.safetensors")
    weights[tensor].view(-1)[0] = number
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    refuse(lambda: serve(target), ModelError, "logits are not numbers", "damaged")


def test_weights_that_are_missing_are_not_made_up(target: Path) -> None:
    weights = load_file(target / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    refuse(lambda: serve(target), ModelError, "model.layers.0.mlp.up_proj.weight")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_prompt_with_a_damaged_tokenizer_is_refused(target: Path, name: str, damage: str) -> None:
    (target / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    DAMAGES[damage](target / name)

    def prompt() -> None:
        Prompter(target).conversation([Turn("user", "What is 2 + 3?")])

    if (name, damage) in HARMLESS:
        with contextlib.suppress(BadInput):  # a template that is text, and fails
            prompt()
    else:
        one_line(prompt)


@pytest.mark.parametrize(
    "template", [7, ["x"], [{"name": "default", "template": 3}], "{{ 1 / 0 }}", "{{ messages.x.y }}"]
)
def test_a_chat_template_that_fails_is_refused(target: Path, template: Any) -> None:
    path = target / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    with pytest.raises(BadInput):
        Prompter(target, "chat").conversation([Turn("user", "What is 2 + 3?")])


# ---------------------------------------------------------------- GGUF


def load_drafter(path: Path) -> None:
    LlamaContext(path, LlamaOptions(sequences=1, threads=1)).close()


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return Path(shutil.copy(bundled().require("drafter"), tmp_path / "drafter.gguf"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_gguf_is_refused_as_drafter_and_as_target(drafter: Path, damage: str) -> None:
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copy(bundled().require("target") / name, drafter.with_name(name))
    DAMAGES[damage](drafter)
    one_line(lambda: load_drafter(drafter))
    one_line(lambda: serve(drafter, "llama"))


def test_a_gguf_whose_weights_are_not_numbers_is_refused(drafter: Path) -> None:
    load_drafter(drafter)
    (tensor,) = (t for t in gguf.GGUFReader(drafter).tensors if t.name == "output_norm.weight")
    with drafter.open("r+b") as file:
        file.seek(tensor.data_offset)
        file.write(np.float32(np.nan).tobytes())
    refuse(lambda: load_drafter(drafter), ModelError, "invalid data")


# ---------------------------------------------------------------- head


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["head.json", "head.safetensors"])
def test_a_damaged_head_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    head = Path(shutil.copytree(bundled().require("head"), tmp_path / "head"))
    DAMAGES[damage](head / name)
    one_line(lambda: serve(bundled().require("target"), head=str(head), judge="head"))


# ---------------------------------------------------------------- command line


@pytest.mark.parametrize("damage", ["truncated", "object"])
def test_the_command_line_shows_one_line_and_exits_with_2(target: Path, damage: str) -> None:
    DAMAGES[damage](target / "tokenizer.json")
    command = [sys.executable, "-m", "testbed", "bs", "serve", "--bind", "tcp://127.0.0.1:*"]
    command += ["--engine", "transformers", "--model", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ})
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1 and "tokenizer.json" in done.stderr
