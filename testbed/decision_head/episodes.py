"""Episodes: mismatches recorded during speculative decoding, by prompt, in chunks on disk (WISV Section V-B).

A chunk contains whole episodes. Files are written atomically.
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
from safetensors.numpy import load_file, save

from testbed.decision_head.episode_files import check_chunk, check_labels
from testbed.errors import BadInput
from testbed.files import claim, file_bytes, regular_bytes, whole_file
from testbed.protocols.messages import Reading

META = "meta.json"
SCHEMA = 2
"""Version of the files. Schema 1 had neither the states after a candidate nor unparsed labels."""
HARMLESS, CRITICAL, UNPARSED = 0, 1, -1
"""Labels of a mismatch. Unparsed: the target's own completion has no answer; left out of training and evaluation."""


class Meta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Origin of a collection of episodes. Collections can only be merged if it is equal."""

    schema: int = SCHEMA
    dataset: str
    first: int = 0
    """Index of the first prompt."""
    prompts: int
    seed: int
    window: int
    max_tokens: int
    policy: str
    """Policy that accepted or rejected mismatches during collection."""
    explore: float = 0.0
    """Probability of accepting a mismatch, under random policies."""
    engine: str
    drafter: str
    drafter_fingerprint: str
    drafter_quantisation: str
    """Most common type of the drafter's weights, such as F32 or Q8_0."""
    target: str
    target_fingerprint: str
    drafter_hidden: int
    """d_d"""
    target_hidden: int
    """d_t"""
    hidden_bits: int = 16
    scorer: str = "number"
    """Extracts the final answer from an output."""
    prompt_format: str = "auto"
    shots: int = 0
    """Worked examples before every question."""


@dataclass(frozen=True)
class Mismatches:
    """n mismatches, ordered by episode and by position within it."""

    prompt: NDArray[np.int32]
    """[n] index of the prompt."""
    order: NDArray[np.int32]
    """[n] number of the mismatch within its episode, from 0."""
    position: NDArray[np.int32]
    """[n] position in the output, from 0."""
    draft_id: NDArray[np.int32]
    """[n]"""
    target_id: NDArray[np.int32]
    """[n] the target's argmax."""
    drafter_hidden: NDArray[np.float16]
    """[n, d_d] h_d, the drafter's state that predicted the draft token."""
    target_hidden: NDArray[np.float32]
    """[n, d_t] h_t, the target's state that predicts a token in its place."""
    drafter_after: NDArray[np.float16]
    """[n, d_d] the drafter's state after it has read the draft token."""
    target_after: NDArray[np.float32]
    """[n, d_t] the target's state after it has read the draft token."""
    prefix_start: NDArray[np.int64]
    """[n + 1] start of each mismatch's prefix in `prefix_ids`."""
    prefix_ids: NDArray[np.int32]
    """Concatenated prefixes: ids before each mismatch, including the prompt."""
    prompt_len: NDArray[np.int32]
    """[n] tokens of the prompt."""

    def __len__(self) -> int:
        return len(self.prompt)

    def prefix(self, row: int) -> NDArray[np.int32]:
        """Ids before mismatch `row`."""
        found: NDArray[np.int32] = self.prefix_ids[self.prefix_start[row] : self.prefix_start[row + 1]]
        return found

    def take(self, chosen: NDArray[np.bool_]) -> Mismatches:
        """The mismatches of a mask [n]."""
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("prefix_start", "prefix_ids")}
        lengths = np.diff(self.prefix_start)
        return Mismatches(
            **{name: values[chosen] for name, values in columns.items()},
            prefix_start=np.append(0, np.cumsum(lengths[chosen])),
            prefix_ids=self.prefix_ids[np.repeat(chosen, lengths)],
        )

    def states(self, reading: Reading) -> tuple[NDArray[np.float16], NDArray[np.float32]]:
        """h_d [n, d_d] and h_t [n, d_t] of a reading of WISV eq. 23."""
        if reading == "after":
            return self.drafter_after, self.target_after
        return self.drafter_hidden, self.target_hidden


def joined(parts: list[Mismatches]) -> Mismatches:
    """Concatenate chunks."""
    columns = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Mismatches)}
    ends = np.cumsum([0, *(int(p.prefix_start[-1]) for p in parts)])
    starts = [p.prefix_start[:-1] + end for p, end in zip(parts, ends, strict=False)]
    return Mismatches(**(columns | {"prefix_start": np.append(np.concatenate(starts), ends[-1])}))


class EpisodeStore:
    """Directory of episodes.

    Raises:
        BadInput: a file is missing or cannot be read, or the directory contains another collection.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._meta: Meta | None = None

    @property
    def meta(self) -> Meta:
        """Origin of the episodes."""
        if self._meta is None:
            self.open()
        assert self._meta is not None
        return self._meta

    def create(self, meta: Meta) -> None:
        """Start a collection, or continue one with the same `meta`."""
        claim(self.directory / META, meta, lambda _: self.open(), lambda new, _: self._write_meta(new), "collection")

    def rescore(self, scorer: str) -> None:
        """Change the scorer of a collection without labels."""
        self._write_meta(msgspec.structs.replace(self.meta, scorer=scorer))

    def _write_meta(self, meta: Meta) -> None:
        self._meta = meta
        with whole_file(self.directory / META) as part:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=2))

    def open(self) -> Meta:
        """Read `meta` from disk."""
        path = self.directory / META
        try:
            self._meta = msgspec.json.decode(file_bytes(path), type=Meta)
        except (OSError, BadInput, RecursionError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise BadInput(f"no episodes in {self.directory} ({exc}); run `testbed head collect`") from exc
        if self._meta.schema != SCHEMA:
            raise BadInput(f"{self.directory} has schema {self._meta.schema}, not {SCHEMA}: collect the episodes again")
        return self._meta

    def chunks(self) -> list[int]:
        """Numbers of the existing chunks."""
        return self._numbers("chunk")

    def labelled(self) -> list[int]:
        """Numbers of the labelled chunks."""
        return self._numbers("labels")

    def read(self, number: int) -> Mismatches:
        """Read one chunk."""
        arrays = self._load("chunk", number)
        try:
            check_chunk(arrays, (self.meta.drafter_hidden, self.meta.target_hidden))
        except BadInput as exc:
            raise BadInput(f"{self._path('chunk', number)} is not a chunk of episodes: {exc}") from exc
        return Mismatches(**arrays)

    def write(self, number: int, found: Mismatches) -> None:
        """Write one chunk."""
        self._save("chunk", number, {f.name: np.ascontiguousarray(getattr(found, f.name)) for f in fields(Mismatches)})

    def read_labels(self, number: int) -> tuple[NDArray[np.int8], int]:
        """[n] label of each mismatch of a chunk (`CRITICAL`, `HARMLESS` or `UNPARSED`), and the number of completions
        run to find out.
        """
        arrays = self._load("labels", number)
        try:
            check_labels(arrays, (HARMLESS, CRITICAL, UNPARSED))
        except BadInput as exc:
            raise BadInput(f"{self._path('labels', number)} has no labels of a chunk: {exc}") from exc
        return arrays["label"].astype(np.int8), int(arrays["completions"][0])

    def write_labels(self, number: int, labels: NDArray[np.int8], completions: int) -> None:
        """Write the labels of one chunk: a mismatch is critical if accepting it changes the final answer."""
        counted = np.array([completions], np.int64)
        self._save("labels", number, {"label": labels.astype(np.int8), "completions": counted})

    def load(self) -> tuple[Mismatches, NDArray[np.bool_]]:
        """All mismatches with a label, and whether each is critical [n]; unparsed ones are left out.

        Raises:
            BadInput: there are no labels.
        """
        numbers = self.labelled()
        if not numbers:
            raise BadInput(f"no labels in {self.directory}; run `testbed head label`")
        parts, labelled = [self.read(number) for number in numbers], [self.read_labels(number)[0] for number in numbers]
        for number, part, found in zip(numbers, parts, labelled, strict=True):
            if len(part) != len(found):
                raise BadInput(f"{self._path('labels', number)} has {len(found)} labels of {len(part)} mismatches")
        labels = np.concatenate(labelled)
        return joined(parts).take(labels != UNPARSED), labels[labels != UNPARSED] == CRITICAL

    def _path(self, kind: str, number: int) -> Path:
        return self.directory / f"{kind}-{number:05d}.safetensors"

    def _numbers(self, kind: str) -> list[int]:
        names = (path.stem.removeprefix(f"{kind}-") for path in self.directory.glob(f"{kind}-*.safetensors"))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _load(self, kind: str, number: int) -> dict[str, NDArray[Any]]:
        path = self._path(kind, number)
        try:
            regular_bytes(path)
            arrays: dict[str, NDArray[Any]] = load_file(path)
        except (OSError, SafetensorError, TypeError, AttributeError) as exc:  # the last two: types that numpy lacks
            raise BadInput(f"{path} cannot be read: {exc}") from exc
        return arrays

    def _save(self, kind: str, number: int, arrays: dict[str, NDArray[np.generic]]) -> None:
        with whole_file(self._path(kind, number)) as part:
            part.write_bytes(save(arrays))  # its own writing would tell of a full disk by an error of its own


def split(prompts: NDArray[np.int32], share: float, seed: int) -> NDArray[np.bool_]:
    """[n] mask of held-out rows: all rows of a random `share` of the prompts.

    Raises:
        BadInput: a share outside (0, 1), or fewer than two prompts.
    """
    known = sorted({int(p) for p in prompts})
    if not 0 < share < 1 or len(known) < 2:
        raise BadInput(f"a share in (0, 1) of at least 2 prompts can be held out, not {share:g} of {len(known)}")
    count = min(max(1, round(share * len(known))), len(known) - 1)
    chosen = random.Random(f"held-out/{seed}").sample(known, count)
    held: NDArray[np.bool_] = np.isin(prompts, chosen)
    return held
