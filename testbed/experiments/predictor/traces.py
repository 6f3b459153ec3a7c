"""Drafting traces on disk: the drafter's statistics for every drafted token, and whether the target accepted it.

A chunk holds all rounds of some prompts. Files are written under a temporary name and renamed, so that existing files
are complete.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import MOST_EXAMPLES
from testbed.files import claim, file_bytes, whole_file
from testbed.protocols.codec import AnyArray
from testbed.ue.windows.predictor import FEATURES, AcceptanceLabels
from testbed.unpacked.arrays import npz_arrays

LOG = logging.getLogger(__name__)
META = "meta.json"
CHUNK = 25
"""Prompts per chunk, the unit of resuming."""
MOST_FEATURE, MOST_INDEX = 1e6, 2**31 - 1
"""Largest statistic, either way, and largest index of a prompt or round, that is read."""


class TraceMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Provenance of traces; collections can be combined only if it is equal."""

    schema: int = 1
    dataset: str
    first: int
    """Index of the first prompt."""
    prompts: int
    window: int
    max_tokens: int
    engine: str
    dtype: str
    drafter: str
    drafter_fingerprint: str
    target: str
    target_fingerprint: str
    prompt_format: str = "auto"
    labels: AcceptanceLabels = AcceptanceLabels()


@dataclass(frozen=True)
class Traces:
    """n labelled tokens: those up to and including the first rejection of each round, in the order of passes; and the
    m tokens after it (`later_…`), which have no label and are not used for training.
    """

    prompt: NDArray[np.int32]
    """[n] index of the prompt."""
    round: NDArray[np.int32]
    """[n] index of the round within its prompt, from 0."""
    features: NDArray[np.float32]
    """[n, 5], see `testbed.ue.windows.predictor.FEATURES`."""
    accepted: NDArray[np.uint8]
    """[n] 1: accepted; 0: the round's first rejection."""
    later_prompt: NDArray[np.int32]
    later_round: NDArray[np.int32]
    later_features: NDArray[np.float32]
    """[m, 5]"""

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def prompts(self) -> int:
        """Number of prompts with labelled tokens."""
        return len(np.unique(self.prompt))

    def of(self, rows: NDArray[np.bool_], prompts: NDArray[np.int32]) -> Traces:
        """Select labelled tokens by the mask `rows` [n], and later tokens by `prompts`."""
        later = np.isin(self.later_prompt, prompts)
        return Traces(*(getattr(self, f.name)[later if f.name.startswith("later_") else rows] for f in fields(Traces)))


def checked(arrays: Mapping[str, AnyArray]) -> Traces:
    """Traces of arrays that were read.

    Raises:
        BadInput: types, shapes or values that no collection writes.
    """
    for name, array in arrays.items():
        rows = arrays["later_prompt" if name.startswith("later_") else "prompt"]
        shape = (rows.size, len(FEATURES)) if name.endswith("features") else (rows.size,)
        if array.shape != shape:
            raise BadInput(f"{name} has the shape {array.shape}, not {shape}")
        if array.dtype.kind not in ("f" if name.endswith("features") else "iu"):
            raise BadInput(f"{name} has elements of type {array.dtype}")
        most = MOST_FEATURE if name.endswith("features") else 1 if name == "accepted" else MOST_INDEX
        least = -most if name.endswith("features") else 0
        if array.size and not (array.min() >= least and array.max() <= most):
            raise BadInput(f"{name} has values outside {least:g}..{most:g}")
    return Traces(**arrays)


def joined(parts: list[Traces]) -> Traces:
    """Concatenate traces."""
    return Traces(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Traces)))


def split(traces: Traces, share: float, seed: int) -> tuple[Traces, Traces]:
    """Split traces by prompt into training data and held-out data, with about `share` of the prompts held out.

    Raises:
        BadInput: a share outside (0, 1), or fewer than two prompts.
    """
    known = np.unique(traces.prompt)
    if not 0 < share < 1 or len(known) < 2:
        raise BadInput(f"the held out share must lie in (0, 1), of at least 2 prompts, not {share:g} of {len(known)}")
    count = min(max(1, round(share * len(known))), len(known) - 1)
    held = np.sort(np.random.default_rng([seed, 1]).permutation(known)[:count])
    rows = np.isin(traces.prompt, held)
    return traces.of(~rows, np.setdiff1d(known, held)), traces.of(rows, held)


class TraceStore:
    """A directory of traces.

    Raises:
        BadInput: a missing or unreadable file, or a directory of another collection.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def create(self, meta: TraceMeta) -> None:
        """Start a collection, or resume one with the same `meta`."""
        claim(self.directory / META, meta, lambda _: self.meta(), _write_meta, "collection")

    def meta(self) -> TraceMeta:
        """Provenance of the traces."""
        try:
            return msgspec.json.decode(file_bytes(self.directory / META), type=TraceMeta)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise BadInput(f"no traces in {self.directory} ({exc}); run `testbed predictor collect`") from exc

    def chunks(self) -> list[int]:
        """Indices of existing chunks."""
        names = (path.stem.removeprefix("chunk-") for path in self.directory.glob("chunk-*.npz"))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def missing(self) -> list[int]:
        """Indices of chunks that are still to be collected.

        Raises:
            BadInput: of more prompts than a data set has.
        """
        if not 0 <= (prompts := self.meta().prompts) <= MOST_EXAMPLES:
            raise BadInput(f"{self.directory / META} names {prompts} prompts; there are at most {MOST_EXAMPLES}")
        done = set(self.chunks())
        return [number for number in range(-(-prompts // CHUNK)) if number not in done]

    def write(self, number: int, traces: Traces) -> None:
        """Write one chunk."""
        with whole_file(self._path(number)) as part, part.open("wb") as stream:
            np.savez_compressed(stream, **{f.name: getattr(traces, f.name) for f in fields(Traces)})

    def load(self) -> Traces:
        """Load all chunks; warns if some are missing.

        Raises:
            BadInput: no chunks, or unreadable ones.
        """
        missing = len(self.missing())
        if not (numbers := self.chunks()):
            raise BadInput(f"no traces in {self.directory} yet; run `testbed predictor collect`")
        if missing:
            LOG.warning(
                "%s is unfinished: it lacks %d of %d chunks of prompts; `testbed predictor collect` completes it",
                self.directory, missing, missing + len(numbers),
            )  # fmt: skip
        return joined([self._read(number) for number in numbers])

    def _read(self, number: int) -> Traces:
        path = self._path(number)
        try:
            arrays = npz_arrays(path)
            return checked({f.name: arrays[f.name] for f in fields(Traces)})
        except (KeyError, BadInput) as exc:
            raise BadInput(f"{path} is not a chunk of traces: {exc}") from exc

    def _path(self, number: int) -> Path:
        return self.directory / f"chunk-{number:05d}.npz"


def _write_meta(meta: TraceMeta, path: Path) -> None:
    with whole_file(path) as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=2))
