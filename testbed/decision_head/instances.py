"""Training instances: mismatches under sampled channel states, labelled repair or skip (WISV Section V-B)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from testbed.channel.csi import FEATURES
from testbed.decision_head.episodes import Meta, Mismatches
from testbed.errors import BadInput
from testbed.files import regular_bytes, whole_file

ORIGIN = "origin"


@dataclass(frozen=True, eq=False)
class Instances:
    """m training instances."""

    row: NDArray[np.int32]
    """[m] index of the mismatch."""
    features: NDArray[np.float32]
    """[m, 5] channel features, columns as in `channel.csi.FEATURES`."""
    quality: NDArray[np.float32]
    """[m] channel quality q in [0, 1]."""
    p_repair: NDArray[np.float32]
    """[m] probability of repair under the policy."""
    action: NDArray[np.bool_]
    """[m] sampled action; True: repair."""

    def __len__(self) -> int:
        return len(self.row)

    def take(self, chosen: NDArray[Any]) -> Instances:
        """Select instances by index or mask [m]."""
        return Instances(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


def base_instances(critical: NDArray[np.bool_]) -> Instances:
    """One instance per mismatch with its base label, for a head that ignores the channel (features 0, quality 1)."""
    rows = len(critical)
    return Instances(
        np.arange(rows, dtype=np.int32),
        np.zeros((rows, len(FEATURES)), np.float32),
        np.ones(rows, np.float32),
        critical.astype(np.float32),
        critical.astype(np.bool_),
    )


def origin(meta: Meta, found: Mismatches) -> str:
    """String that identifies the mismatches behind instances, so that mixed-up files are refused."""
    return f"{msgspec.json.encode(meta, order='sorted').decode()}, {len(found)} mismatches"


class _Problems(msgspec.Struct):
    """The problems of a collection, as the string of `origin` names them."""

    dataset: str
    prompts: int
    first: int = 0


def problems_seen(trained: str, meta: Meta) -> int:
    """Number of a collection's problems that are among those of the episodes behind `trained`, a string of `origin`."""
    try:
        seen = msgspec.json.decode(trained.rpartition(", ")[0], type=_Problems)
    except (msgspec.DecodeError, RecursionError):
        return 0
    if seen.dataset != meta.dataset:
        return 0
    return max(0, min(seen.first + seen.prompts, meta.first + meta.prompts) - max(seen.first, meta.first))


def save_instances(instances: Instances, path: Path, made_of: str) -> None:
    """Write instances to a safetensors file.

    Raises:
        BadInput, TestbedError: as `whole_file`.
    """
    arrays = {f.name: np.ascontiguousarray(getattr(instances, f.name)) for f in fields(instances)}
    arrays["action"] = instances.action.astype(np.uint8)
    with whole_file(path) as part:
        part.write_bytes(save(arrays, {ORIGIN: made_of}))


def load_instances(path: Path, made_of: str, mismatches: int) -> Instances:
    """Read instances.

    Args:
        mismatches: number of mismatches from which they were made.

    Raises:
        BadInput: no such file, not a file of instances, or made from other mismatches.
    """
    try:
        regular_bytes(path)
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            found = (file.metadata() or {}).get(ORIGIN)
    except (OSError, SafetensorError, TypeError, AttributeError) as exc:  # the last two: types that numpy lacks
        raise BadInput(f"no relabelled instances in {path}: {exc}; run `testbed head relabel`") from exc
    names = {f.name for f in fields(Instances)}
    if arrays.keys() != names or not _possible(arrays, mismatches):
        raise BadInput(f"{path} holds no relabelled instances; run `testbed head relabel`")
    if found != made_of:
        raise BadInput(f"{path} was made from other episodes, or before more were labelled: relabel them")
    return Instances(**(arrays | {"action": arrays["action"].astype(np.bool_)}))


def _possible(arrays: Mapping[str, NDArray[Any]], mismatches: int) -> bool:
    """Whether arrays have the shapes, kinds and ranges of `Instances`."""
    row, count = arrays["row"], arrays["row"].size
    shapes = {name: (count, len(FEATURES)) if name == "features" else (count,) for name in arrays}
    kinds = dict.fromkeys(arrays, "f") | {"row": "i", "action": "u"}
    if any(array.shape != shapes[name] or array.dtype.kind != kinds[name] for name, array in arrays.items()):
        return False
    shares = np.concatenate([arrays["quality"], arrays["p_repair"], arrays["action"]])
    within = ((row >= 0) & (row < mismatches)).all() and ((shares >= 0) & (shares <= 1)).all()
    return bool(within and np.isfinite(arrays["features"]).all())
