"""Hugging Face model directories: configuration, and weights from safetensors, one tensor at a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.assets.model_directory import check_regular
from testbed.errors import ModelError, TestbedError
from testbed.files import file_bytes, regular_bytes

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


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
            ModelError: config.json or a weight file is missing or unreadable.
        """
        self.directory = directory
        check_regular(directory)
        raw = self._json("config.json")
        self.architecture = str((raw.get("architectures") or ["none"])[0])
        self.config = self._config()
        self._files: dict[str, Any] = {}
        self._file_of = self._find_tensors()
        self.names = list(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return tuple(self._read(name, "get_slice").get_shape())

    def load(self, name: str) -> NDArray[np.float32]:
        """Read one tensor as float32."""
        array: NDArray[np.float32] = self._read(name, "get_tensor").float().numpy()
        return array

    def _read(self, name: str, method: str) -> Any:
        from safetensors import SafetensorError

        file = self._file_of[name]
        try:
            return getattr(self._open(file), method)(name)
        except SafetensorError as exc:
            raise ModelError(f"{self.directory / file}: tensor {name} cannot be read ({exc})") from exc

    def _json(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        try:
            content = json.loads(file_bytes(path))
        except FileNotFoundError:
            raise ModelError(f"{path}: no such file; give a Hugging Face model directory") from None
        except (OSError, ValueError, RecursionError) as exc:
            raise ModelError(f"{path}: not readable as JSON ({exc})") from exc
        if not isinstance(content, dict):
            raise ModelError(f"{path}: not a JSON object")
        return content

    def _config(self) -> Any:
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(self.directory, local_files_only=True, trust_remote_code=False)
        except Exception as exc:
            reason = " ".join(str(exc).split())
            raise ModelError(f"{self.directory}: transformers cannot read its config.json: {reason}") from exc

    def _find_tensors(self) -> dict[str, str]:
        """File name of each tensor."""
        if (self.directory / INDEX).is_file():
            files = self._json(INDEX).get("weight_map")
            if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
                raise ModelError(f"{self.directory / INDEX}: no weight_map from tensors to files")
            return files
        return dict.fromkeys(self._open(SINGLE).keys(), SINGLE)

    def _open(self, file: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if file not in self._files:
            path = self.directory / file
            try:
                regular_bytes(path)
                self._files[file] = safe_open(path, framework="pt")
            except FileNotFoundError:
                raise ModelError(f"{path}: no such file; weights must be in safetensors format") from None
            except (SafetensorError, OSError) as exc:
                raise ModelError(f"{path}: not usable as safetensors ({exc})") from exc
        return self._files[file]
