"""Hugging Face model directories: configuration, and weights from safetensors, one tensor at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.assets.model_directory import check_regular, stored_tensors
from testbed.errors import ModelError, TestbedError
from testbed.files import json_object


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block in which safetensors writes a file or folder.

    Raises:
        TestbedError: it cannot, for example on a full disk, of which safetensors tells by an error of its own.
    """
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as exc:
        raise TestbedError(f"cannot write {path}: {exc}") from exc


def causal_lm(directory: Path, dtype: str = "float32") -> Any:
    """The causal language model of a transformers directory, on the CPU.

    Raises:
        ModelError: see `stored_tensors`; or transformers cannot load it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    stored_tensors(directory)
    try:
        return AutoModelForCausalLM.from_pretrained(
            directory, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except Exception as exc:  # of many types, by what is damaged
        reason = " ".join(str(exc).split())
        raise ModelError(f"{directory}: transformers cannot load it: {reason}") from exc


class Checkpoint:
    """Configuration and weights of a model directory.

    Attributes:
        architecture: class name of the model, such as "LlamaForCausalLM".
        config: transformers' configuration.
        names: names of the tensors, in the files' order.
    """

    def __init__(self, directory: Path) -> None:
        """Open a directory without reading weights.

        Raises:
            ModelError: config.json is missing or unreadable, or `stored_tensors` refuses the weights.
        """
        self.directory = directory
        check_regular(directory)
        named = json_object(directory / "config.json").get("architectures")
        self.architecture = str(named[0]) if isinstance(named, list) and named else "none"
        self.config = self._config()
        self._files: dict[Path, Any] = {}
        self._tensors = stored_tensors(directory)
        self.names = list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return self._tensors[name].shape

    def load(self, name: str) -> NDArray[np.float32]:
        """Read one tensor as float32."""
        from safetensors import SafetensorError

        path = self._tensors[name].file
        try:
            array: NDArray[np.float32] = self._open(path).get_tensor(name).float().numpy()
        except SafetensorError as exc:
            raise ModelError(f"{path}: tensor {name} cannot be read ({exc})") from exc
        return array

    def _config(self) -> Any:
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(self.directory, local_files_only=True, trust_remote_code=False)
        except Exception as exc:
            reason = " ".join(str(exc).split())
            raise ModelError(f"{self.directory}: transformers cannot read its config.json: {reason}") from exc

    def _open(self, path: Path) -> Any:
        from safetensors import SafetensorError, safe_open

        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as exc:
                raise ModelError(f"{path}: not usable as safetensors ({exc})") from exc
        return self._files[path]
