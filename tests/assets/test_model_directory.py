"""Which files hold a model's weights: those that both engines load, and none elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from testbed.assets.model_directory import INDEX, SINGLE, stored_tensors, weight_files
from testbed.bs.engines.model_files import check_files
from testbed.bs.engines.transformers import TransformersEngine
from testbed.bs.engines.vllm.engine import ENVIRONMENT
from testbed.errors import ModelError
from testbed.models.checkpoint import Checkpoint
from testbed.models.distill.generate import BatchGenerator
from testbed.models.evaluate import BatchDecoder
from testbed.models.real.parity import _transformers_outputs
from tests.support.models import TOKENS, edit_config, make_model
from tests.support.refusals import refuse

OPENERS: list[Callable[[Path], object]] = [
    Checkpoint,
    TransformersEngine,
    lambda path: BatchGenerator(path, "float32", TOKENS, "cpu"),
    lambda path: BatchDecoder.load(path, 0),
    lambda path: _transformers_outputs(path, [1, 2]),
]
"""All that load a model's weights with or for transformers."""
NO_FILES = ("1", "{}", '{"a": 5}', '["a"]', '{"a": "model.safetensors", "a": "other.safetensors"}')
"""What no index may say instead of the files."""


@pytest.fixture
def single(random_models: dict[str, Path], tmp_path: Path) -> Path:
    """A model of one file that a test may damage."""
    return Path(shutil.copytree(random_models["llama"], tmp_path / "model"))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model of several files that a test may damage."""
    return make_model("llama", tmp_path / "model", 0, max_shard_size="300KB")


def tensors(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = load_file(path)
    return found


def put_index(directory: Path, **changes: Any) -> Path:
    """Write the index anew with changes, or one that says where the tensors of `model.safetensors` are."""
    index = directory / INDEX
    if index.is_file():
        document = json.loads(index.read_text())
    else:
        document = {"metadata": {}, "weight_map": dict.fromkeys(tensors(directory / SINGLE), SINGLE)}
    index.write_text(json.dumps(document | changes))
    return index


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/dev/zero", "pipe", "../pipe", "/etc/passwd", ".", ""])
def test_an_index_names_files_of_its_directory_only(name: str, sharded: Path) -> None:
    """transformers read a device until the memory was full, and waited for a pipe for ever."""
    os.mkfifo(sharded.parent / "pipe")
    shutil.copytree(sharded, sharded.parent / "other")
    put_index(sharded, weight_map={"model.norm.weight": name})
    for opened in OPENERS:
        refuse(lambda opened=opened: opened(sharded), ModelError, f"{INDEX}: {name!r} is not the name of")


@pytest.mark.parametrize(
    "content", ["[1, 2]", "null", "{}", *(f'{{"metadata": {{}}, "weight_map": {files}}}' for files in NO_FILES)]
)
def test_an_index_that_is_none_is_named(content: str, sharded: Path) -> None:
    """The message was "list indices must be integers or slices, not str"."""
    (sharded / INDEX).write_text(content)
    for opened in OPENERS:
        refuse(lambda opened=opened: opened(sharded), ModelError, INDEX)


def test_a_stray_file_beside_one_file_is_refused(single: Path) -> None:
    """vLLM loaded both, the later one over the other, and served other weights than transformers."""
    name = "model.layers.0.mlp.up_proj.weight"
    for stray in ("zz.safetensors", "aa.safetensors", "consolidated.safetensors"):
        save_file({name: torch.zeros(192, 128)}, single / stray)
        refuse(lambda: weight_files(single), ModelError, stray, "vLLM would load it")
        for opened in OPENERS:
            refuse(lambda opened=opened: opened(single), ModelError, stray)
        (single / stray).unlink()
    save_file({name: torch.zeros(192, 128)}, single / ".hidden.safetensors")
    assert weight_files(single) == [single / SINGLE], "neither engine finds it"


def test_one_file_beside_an_index_of_others_is_refused(sharded: Path) -> None:
    """transformers loads the one, vLLM those of the index."""
    save_file({"model.norm.weight": torch.zeros(128)}, sharded / SINGLE)
    refuse(lambda: weight_files(sharded), ModelError, INDEX, "remove one of both")


def test_a_tensor_in_two_files_is_refused(sharded: Path) -> None:
    first, *_, last = weight_files(sharded)
    name = min(tensors(first))
    save_file({**tensors(last), name: tensors(first)[name] * 0}, last)
    for opened in (stored_tensors, *OPENERS):
        refuse(lambda opened=opened: opened(sharded), ModelError, last.name, f"{name} is in {first.name}, too")


def test_other_weights_that_transformers_would_take_are_refused(single: Path) -> None:
    edit_config(single, transformers_weights="zz.safetensors")
    refuse(lambda: weight_files(single), ModelError, "config.json", "transformers_weights")
    edit_config(single, transformers_weights=None)
    (single / "adapter_config.json").write_text("{}")
    refuse(lambda: weight_files(single), ModelError, "adapter_config.json")


@pytest.mark.filterwarnings("ignore")  # vLLM's, as the engine does on its import
@pytest.mark.parametrize("kind", ["single", "single with an index", "sharded", "sharded beside Mistral's own"])
def test_both_engines_load_these_files(kind: str, request: pytest.FixtureRequest) -> None:
    """The functions by which transformers and vLLM choose their files are the oracle."""
    from transformers.modeling_utils import _get_resolved_checkpoint_files

    directory: Path = request.getfixturevalue(kind.split()[0])
    if "index" in kind:
        put_index(directory)
    if "beside" in kind:  # as in mistralai/Mistral-7B-Instruct-v0.3
        save_file({"layers.0.feed_forward.w1.weight": torch.zeros(192, 128)}, directory / "consolidated.safetensors")
        (directory / "params.json").write_text('{"dim": 64}')
        (directory / "pytorch_model.bin").write_bytes(b"no pickle")
    found = weight_files(directory)
    assert (len(found) > 1) == ("sharded" in kind)
    theirs, _ = _get_resolved_checkpoint_files(str(directory), None, None, True, None, False)
    assert theirs is not None and sorted(map(Path, theirs)) == found
    assert set(stored_tensors(directory)) == {name for path in found for name in tensors(path)}
    if find_spec("vllm") is not None:
        assert vllm_files(directory) == found


def vllm_files(directory: Path) -> list[Path]:
    """The files that vLLM loads with the arguments of the engine, which has read config.json and not params.json."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    from testbed.bs.engines.vllm.runner import engine_args

    target = check_files(directory, dtype="float32", vocab_size=None, max_model_len=None)
    args = engine_args(target, "float32", {}, {})
    config = args.create_model_config()
    assert config.hf_text_config.hidden_size == target.hidden_size
    loader = DefaultModelLoader(args.create_load_config())
    _, files, safetensors, _ = loader._prepare_weights(config.model, None, None, True, None)
    assert safetensors
    return sorted(map(Path, files))
