"""Drafters by name: a GGUF file for llama.cpp, or an entry of the registry.

An installed package adds a drafter by an entry point in the group `testbed.drafters`, which names a `DrafterKind`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from testbed.assets.model_names import RELEASES, named
from testbed.errors import BadInput
from testbed.registry import Registry
from testbed.synthetic import VOCAB
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.llama.drafter import LlamaDrafter

CONTEXT = 4096
"""Positions of a sequence where the run leaves them to a drafter without a model."""


@dataclass(frozen=True)
class DrafterOptions:
    """Requirements of a run on its drafter.

    Attributes:
        vocab_size: ids of the tokenizer; None: prompts are ids, and the drafter's own vocabulary counts.
        context: positions of the longest prompt and output; None: the drafter's choice.
        sequences: sequences open at once.
        threads: CPU threads; None: the drafter's choice.
        gpu_layers: layers on a GPU; -1: all.
        kv_type: type of the KV cache.
    """

    vocab_size: int | None = None
    context: int | None = None
    sequences: int = 1
    threads: int | None = None
    gpu_layers: int = -1
    kv_type: Literal["f16", "f32"] = "f16"


class DrafterKind(NamedTuple):
    """A registry entry."""

    kind: str
    about: str
    load: Callable[[str, DrafterOptions], Drafter]
    """Takes the name as it was given, and the options."""


def is_file(name: str) -> bool:
    """Whether a drafter is a GGUF file, given by path or by the name of a fetched model."""
    return name.endswith(".gguf") or name in RELEASES or Path(name).is_file()


def drafter_kind(name: str) -> DrafterKind:
    """The kind of a drafter given by file or name.

    Raises:
        BadInput: unknown name; the message lists the known ones.
    """
    return GGUF if is_file(name) else DRAFTERS.choose(name)


def load_drafter(name: str, options: DrafterOptions) -> Drafter:
    """Load a drafter given by file or name.

    Raises:
        BadInput: unknown name.
        ModelError: it cannot be used.
    """
    return drafter_kind(name).load(name, options)


def drafter_and_tokenizer(
    drafter: str | None, tokenizer: str | None, bundled: tuple[Path | None, Path | None]
) -> tuple[str, Path | None]:
    """Drafter and tokenizer directory as given, else those of the bundled pair.

    A fetched model has its own tokenizer, any other GGUF file none; a drafter without a model drafts for the bundled
    tokenizer.

    Raises:
        BadInput: no drafter, or an unknown name.
        ModelError: a model that has not been fetched.
    """
    name = drafter or (str(bundled[0]) if bundled[0] else None)
    if name is None:
        raise BadInput("which drafter? give --drafter FILE.gguf")
    drafter_kind(name)
    if tokenizer is None and drafter in RELEASES:
        tokenizer = drafter
    by_file = drafter is not None and is_file(drafter)
    directory = Path(named(tokenizer, "tokenizer")) if tokenizer else None if by_file else bundled[1]
    return named(name, "drafter"), directory


def _llama(name: str, options: DrafterOptions) -> Drafter:
    return LlamaDrafter(
        Path(name),
        options.vocab_size,
        context=options.context,
        sequences=options.sequences,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        kv_type=options.kv_type,
    )


def _synthetic(name: str, options: DrafterOptions) -> Drafter:
    return SyntheticDrafter(
        vocab_size=options.vocab_size or VOCAB,
        alpha=0.8,
        context=options.context or CONTEXT,
        max_sequences=options.sequences,
    )


GGUF = DrafterKind("FILE.gguf", "a model in a GGUF file, by llama.cpp", _llama)
DRAFTERS: Registry[DrafterKind] = Registry(
    "drafter",
    "testbed.drafters",
    GGUF,
    DrafterKind("synthetic", "agrees with `--engine synthetic` with probability 0.8, without a model", _synthetic),
    of=DrafterKind,
)
