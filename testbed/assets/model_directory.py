"""Model directories of others, before a library reads them: their files, and the tensors in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import ModelError
from testbed.files import json_object

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
ADAPTER = "adapter_config.json"
"""Weights that transformers adds to a model's where peft is installed, and vLLM does not."""
MOST_LABELS = 10_000
"""Of a classifier, which a model of text is not; transformers names each."""


class _Index(msgspec.Struct):
    """Contents of `INDEX`; transformers needs both."""

    weight_map: dict[str, str]
    """Names of files by names of tensors."""
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as the header of its file describes it."""

    file: Path
    dtype: str
    """As safetensors names it, such as "BF16"."""
    shape: tuple[int, ...]


def check_regular(directory: Path) -> None:
    """Refuse a model directory with files that are none: transformers would wait for a pipe, or read a device for ever.
    One that does not exist is left to those who read it.

    Raises:
        ModelError: a pipe, device, socket, or a link that leads nowhere.
    """
    try:
        odd = [path for path in directory.iterdir() if not path.is_dir() and not path.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as exc:
        raise ModelError(f"{directory}: {exc.strerror}; give a Hugging Face model directory") from exc
    if odd:
        raise ModelError(f"{min(odd)}: not a regular file")


def weight_files(directory: Path) -> list[Path]:
    """The files with a model's weights, by name: those that `INDEX` names, or without one `SINGLE`.

    transformers and vLLM load these, whole, and no others. A directory of which they would load different files is
    refused: transformers prefers `SINGLE` to an index, and vLLM without an index loads all *.safetensors.

    Raises:
        ModelError: see above; no weights; an index that names anything but *.safetensors files in its directory; or a
            file of the directory that is not regular.
    """
    check_regular(directory)
    if (adapter := directory / ADAPTER).is_file():
        raise ModelError(f"{adapter}: adapters are not supported; merge it into the model's weights")
    _check_config(directory / "config.json")
    index, single = directory / INDEX, directory / SINGLE
    if index.is_file():
        files = _indexed(index)
        if single.is_file() and files != [single]:
            raise ModelError(f"{index} names other files than {SINGLE}, which is there, too; remove one of both")
        return files
    if not single.is_file():
        raise ModelError(
            f"no {SINGLE} and no {INDEX} in {directory}: convert the weights with transformers' save_pretrained"
        )
    if others := [path for path in _visible(directory) if path != single]:
        raise ModelError(f"{min(others)}: vLLM would load it beside {SINGLE}, transformers not; move it elsewhere")
    return [single]


def _check_config(config: Path) -> None:
    """Refuse what transformers would read other weights for, or make a list of any length for."""
    if not config.is_file():
        return
    fields = json_object(config)
    if "transformers_weights" in fields:
        raise ModelError(f"{config}: transformers_weights is not supported; name the weights {SINGLE}")
    labels = fields.get("num_labels")
    if labels is not None and not (isinstance(labels, int) and 0 <= labels <= MOST_LABELS):
        raise ModelError(f"{config}: num_labels {labels!r:.40} is not between 0 and {MOST_LABELS}")


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """The tensors in a model's `weight_files` by name, from the headers, which safetensors checks against the sizes of
    the files.

    Raises:
        ModelError: see `weight_files`; a file that is not whole; or a tensor that is in two of them.
    """
    found: dict[str, StoredTensor] = {}
    for path in weight_files(directory):
        header = _header(path)
        if twice := sorted(found.keys() & header.keys()):
            raise ModelError(f"{path}: {twice[0]} is in {found[twice[0]].file.name}, too")
        found |= header
    return found


def _header(path: Path) -> dict[str, StoredTensor]:
    from safetensors import SafetensorError, safe_open  # here, since a UE has no safetensors

    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: StoredTensor(path, one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
    except (SafetensorError, OSError) as exc:
        raise ModelError(f"{path}: not usable as safetensors ({exc})") from exc


def _indexed(index: Path) -> list[Path]:
    """The files that an index names."""
    try:
        names = set(msgspec.convert(json_object(index), _Index).weight_map.values())
    except msgspec.ValidationError as exc:
        raise ModelError(f"{index}: {exc}") from exc
    if not names:
        raise ModelError(f"{index}: names no files")
    present = {path.name: path for path in _visible(index.parent) if path.is_file()}
    if missing := sorted(names - present.keys()):
        raise ModelError(f"{index}: {missing[0]!r:.80} is not the name of a *.safetensors file beside it")
    return [present[name] for name in sorted(names)]


def _visible(directory: Path) -> list[Path]:
    """All *.safetensors that vLLM finds: no hidden ones."""
    return [path for path in directory.glob("*.safetensors") if not path.name.startswith(".")]
