"""Fingerprints of tokenizers, and the check that UE and BS share one.

Vocabularies are compared by tokenizer, not by the number of embedding rows: models pad theirs differently.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.errors import ModelError
from testbed.files import json_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
MOST_IDS = 2**24
"""Ids of a vocabulary, at most."""

BESIDE_GGUF = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
"""Files of a model directory that its GGUF file needs beside it, where there are any: tokenizer and end tokens."""


def tokenizer_directory(model: Path) -> Path:
    """Directory of a model's tokenizer: the model's own, or that of its GGUF file."""
    return model.parent if model.is_file() else model


def tokenizer_file(model: Path) -> Path:
    """Path of a model's tokenizer.

    Raises:
        ModelError: there is none.
    """
    path = tokenizer_directory(model) / FILE
    if not path.is_file():
        raise ModelError(f"no tokenizer in {path.parent}: {FILE} is missing")
    return path


@contextlib.contextmanager
def panics_refused(at: str) -> Iterator[None]:
    """Report a panic of the tokenizers library, which is no `Exception` and exported nowhere, as an error.

    Args:
        at: what the tokenizer fails on.

    Raises:
        ModelError: a panic.
    """
    try:
        yield
    except BaseException as exc:
        if type(exc).__name__ != "PanicException":
            raise
        raise ModelError(f"the tokenizer fails on {at}: {exc}") from exc


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Text of ids, without special tokens.

    Raises:
        ModelError: the decoder of the tokenizer fails on them.
    """
    with panics_refused("these tokens"):
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))


def read_tokenizer(model: Path) -> Tokenizer:
    """A model's tokenizer, with at least one token.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    from tokenizers import Tokenizer

    path = tokenizer_file(model)
    try:
        with panics_refused("this file"):
            tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # the library raises bare Exception
        raise ModelError(f"{path} cannot be read as a tokenizer: {exc}") from exc
    if not tokenizer.get_vocab_size():
        raise ModelError(f"{path} has no tokens")
    tokenizer.no_truncation()  # left in the file by whoever called it last, and without effect in transformers
    tokenizer.no_padding()
    return tokenizer


def _read(path: Path) -> tuple[list[Any], list[str]]:
    """Tokens with their ids, by id, and merges of a model's tokenizer (of a directory, or beside a GGUF file).

    Raises:
        ModelError: no readable `tokenizer.json`.
    """
    file = tokenizer_file(path)
    document = json_object(file)
    try:
        model = document["model"]
        vocab = model["vocab"]
        tokens = vocab.items() if isinstance(vocab, dict) else ((t[0], i) for i, t in enumerate(vocab))
        added = ((t["content"], t["id"]) for t in document.get("added_tokens", ()))
        ids: list[Any] = sorted({*tokens, *added}, key=lambda pair: (pair[1], pair[0]))
        merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", ())]
        if wrong := next((repr(i) for _, i in ids if type(i) is not int or not 0 <= i < MOST_IDS), ""):
            raise ValueError(f"an id of {wrong[:40]}")
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        raise ModelError(f"{file} cannot be read as a tokenizer: {exc}") from exc
    return ids, merges


def token_ids(path: Path) -> dict[str, int]:
    """Ids by token of a model's tokenizer, as `fingerprint` finds it.

    Raises:
        ModelError: no readable `tokenizer.json`.
    """
    return {str(token): int(number) for token, number in _read(path)[0]}


class Overlap(NamedTuple):
    """Numbers of ids of two vocabularies."""

    ids_a: int
    ids_b: int
    common: int
    """Tokens that are in both, whatever their ids."""
    share: float
    """Share of the second one's tokens that the first one has."""


def overlap(a: Path, b: Path) -> Overlap:
    """How much of one vocabulary is in another, such as of a drafter's in its target's.

    Raises:
        ModelError: no readable `tokenizer.json`, or one without tokens.
    """
    first, second = token_ids(a), token_ids(b)
    if not second:
        raise ModelError(f"{tokenizer_file(b)} has no tokens")
    common = len(first.keys() & second.keys())
    return Overlap(len(first), len(second), common, common / len(second))


def fingerprint(path: Path) -> str:
    """Fingerprint of a model's tokenizer (of a directory, or beside a GGUF file): its tokens, their ids and its merges;
    chat template, padding and post-processing do not count.

    Raises:
        ModelError: no readable `tokenizer.json`.
    """
    ids, merges = _read(path)
    return hashlib.sha256(json.dumps([ids, merges], ensure_ascii=False).encode()).hexdigest()[:16]


def check_same(ue: tuple[str, int], bs: tuple[str, int]) -> None:
    """Refuse a drafter and a target that do not share a vocabulary; each side is (fingerprint or "", ids).

    Where one side has no tokenizer, the numbers of ids must be equal.

    Raises:
        ModelError: they differ.
    """
    if ue[0] and bs[0]:
        if ue[0] != bs[0]:
            raise ModelError(
                f"tokenizer mismatch: the UE's is {ue[0]}, the BS's is {bs[0]}; use a pair that shares one"
            )
    elif ue[1] != bs[1]:
        raise ModelError(f"vocabulary mismatch: the UE drafts {ue[1]} ids, the BS knows {bs[1]}")
