"""Checkpoints whose index of weights, or weights, are no such file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from testbed.bs.engines.transformers import TransformersEngine
from testbed.errors import ModelError
from testbed.models.bundle import bundled
from testbed.models.checkpoint import Checkpoint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A copy of the bundled target."""
    target = bundled().target
    assert target is not None
    return Path(shutil.copytree(target, tmp_path / "target"))


@pytest.mark.parametrize("content", ["[1, 2]", "null", "{}", '{"weight_map": 1}'])
def test_an_index_of_weights_without_a_map_is_refused(content: str, directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError):
        Checkpoint(directory)


def test_a_directory_in_place_of_weights_is_refused(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").mkdir()
    with pytest.raises(ModelError):
        Checkpoint(directory)


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
def test_files_that_are_none_are_refused(name: str, kind: str, directory: Path) -> None:
    """transformers waited for a pipe for ever, and filled the memory from a device."""
    path = directory / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    for opened in (Checkpoint, TransformersEngine):
        with pytest.raises(ModelError, match="not a regular file"):
            opened(directory)
