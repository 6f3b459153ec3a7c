"""Episodes: the mismatches that speculative decoding ran into, prompt by prompt, in chunks on disk (WISV Section V-B).

A chunk holds whole episodes. Every file is written under another name first, so that what is there is whole.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from testbed.errors import BadInput

META = "meta.json"


class Meta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where episodes come from; two collections mix only if it is the same."""

    schema: int = 1
    dataset: str
    first: int = 0
    """Index of the first prompt taken."""
    prompts: int
    seed: int
    window: int
    max_tokens: int
    policy: str
    """What decided at a mismatch while walking."""
    explore: float = 0.0
    """Chance that a mismatch was accepted, where the policy leaves it to chance."""
    engine: str
    drafter: str
    drafter_fingerprint: str
    drafter_quantisation: str
    """Type of most of its weights, such as F32 or Q8_0."""
    target: str
    target_fingerprint: str
    drafter_hidden: int
    """d_d"""
    target_hidden: int
    """d_t"""
    hidden_bits: int = 16
    scorer: str = "number"
    """Reads the final answer out of an output."""


@dataclass(frozen=True)
class Mismatches:
    """n mismatches, episode by episode, each episode in order."""

    prompt: NDArray[np.int32]
    """[n] index of the prompt."""
    order: NDArray[np.int32]
    """[n] number of the mismatch within its episode, from 0."""
    position: NDArray[np.int32]
    """[n] place in the output, from 0."""
    draft_id: NDArray[np.int32]
    """[n]"""
    target_id: NDArray[np.int32]
    """[n] the target's argmax."""
    drafter_hidden: NDArray[np.float16]
    """[n, d_d] (h_d)."""
    target_hidden: NDArray[np.float32]
    """[n, d_t] (h_t)."""
    prefix_start: NDArray[np.int64]
    """[n + 1] where each one's prefix begins in `prefix_ids`."""
    prefix_ids: NDArray[np.int32]
    """Ids before each mismatch, prompt included, one after the other."""
    prompt_len: NDArray[np.int32]
    """[n] tokens of the prompt."""

    def __len__(self) -> int:
        return len(self.prompt)

    def prefix(self, row: int) -> NDArray[np.int32]:
        """Ids before mismatch `row`."""
        found: NDArray[np.int32] = self.prefix_ids[self.prefix_start[row] : self.prefix_start[row + 1]]
        return found


def joined(parts: list[Mismatches]) -> Mismatches:
    """Several chunks as one."""
    columns = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Mismatches)}
    ends = np.cumsum([0, *(int(p.prefix_start[-1]) for p in parts)])
    starts = [p.prefix_start[:-1] + end for p, end in zip(parts, ends, strict=False)]
    return Mismatches(**(columns | {"prefix_start": np.append(np.concatenate(starts), ends[-1])}))


class EpisodeStore:
    """A directory of episodes.

    Raises:
        BadInput: a file that is missing or cannot be read, or another collection's directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._meta: Meta | None = None

    @property
    def meta(self) -> Meta:
        """Where the episodes come from."""
        if self._meta is None:
            self.open()
        assert self._meta is not None
        return self._meta

    def create(self, meta: Meta) -> None:
        """Begin a collection, or go on with one of the same `meta`."""
        path = self.directory / META
        if path.exists():
            if self.open() != meta:
                raise BadInput(f"{self.directory} holds another collection; give another --out")
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_meta(meta)

    def rescore(self, scorer: str) -> None:
        """Name another scorer; for a collection without labels."""
        self._write_meta(msgspec.structs.replace(self.meta, scorer=scorer))

    def _write_meta(self, meta: Meta) -> None:
        self._meta = meta
        path = self.directory / META
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=2))
        part.replace(path)

    def open(self) -> Meta:
        """Read what is there."""
        path = self.directory / META
        try:
            self._meta = msgspec.json.decode(path.read_bytes(), type=Meta)
        except (OSError, msgspec.DecodeError) as exc:
            raise BadInput(f"no episodes in {self.directory} ({exc}); `testbed head collect` makes them") from exc
        return self._meta

    def chunks(self) -> list[int]:
        """Numbers of the chunks that are there."""
        return self._numbers("chunk")

    def labelled(self) -> list[int]:
        """Numbers of the chunks that have labels."""
        return self._numbers("labels")

    def read(self, number: int) -> Mismatches:
        """One chunk."""
        arrays = self._load("chunk", number)
        try:
            return Mismatches(**arrays)
        except TypeError as exc:
            raise BadInput(f"{self._path('chunk', number)} is no chunk of episodes: {exc}") from exc

    def write(self, number: int, found: Mismatches) -> None:
        """Write one chunk."""
        self._save("chunk", number, {f.name: np.ascontiguousarray(getattr(found, f.name)) for f in fields(Mismatches)})

    def read_labels(self, number: int) -> tuple[NDArray[np.bool_], int]:
        """[n] whether each mismatch of a chunk is critical, and the completions that it took to know."""
        arrays = self._load("labels", number)
        return arrays["critical"].astype(np.bool_), int(arrays["completions"][0])

    def write_labels(self, number: int, critical: NDArray[np.bool_], completions: int) -> None:
        """Write the labels of one chunk: critical where accepting the draft changes the final answer."""
        counted = np.array([completions], np.int64)
        self._save("labels", number, {"critical": critical.astype(np.uint8), "completions": counted})

    def load(self) -> tuple[Mismatches, NDArray[np.bool_]]:
        """Everything that is labelled, and whether it is critical [n].

        Raises:
            BadInput: nothing is labelled.
        """
        numbers = self.labelled()
        if not numbers:
            raise BadInput(f"nothing in {self.directory} is labelled; `testbed head label` does that")
        parts = [self.read(number) for number in numbers]
        return joined(parts), np.concatenate([self.read_labels(number)[0] for number in numbers])

    def _path(self, kind: str, number: int) -> Path:
        return self.directory / f"{kind}-{number:05d}.safetensors"

    def _numbers(self, kind: str) -> list[int]:
        names = (path.stem.removeprefix(f"{kind}-") for path in self.directory.glob(f"{kind}-*.safetensors"))
        return sorted(int(name) for name in names if name.isdigit())

    def _load(self, kind: str, number: int) -> dict[str, NDArray[Any]]:
        path = self._path(kind, number)
        try:
            arrays: dict[str, NDArray[Any]] = load_file(path)
        except (OSError, SafetensorError) as exc:
            raise BadInput(f"{path} cannot be read: {exc}") from exc
        return arrays

    def _save(self, kind: str, number: int, arrays: dict[str, NDArray[np.generic]]) -> None:
        path = self._path(kind, number)
        part = path.with_suffix(".part")
        save_file(arrays, part)
        part.replace(path)


def split(prompts: NDArray[np.int32], share: float, seed: int) -> NDArray[np.bool_]:
    """[n] which rows are held out: all rows of about that share of the prompts.

    Raises:
        BadInput: a share outside (0, 1), or too few prompts for one on each side.
    """
    known = sorted({int(p) for p in prompts})
    if not 0 < share < 1 or len(known) < 2:
        raise BadInput(f"a share in (0, 1) of at least 2 prompts can be held out, not {share:g} of {len(known)}")
    count = min(max(1, round(share * len(known))), len(known) - 1)
    chosen = random.Random(f"held-out/{seed}").sample(known, count)
    held: NDArray[np.bool_] = np.isin(prompts, chosen)
    return held
