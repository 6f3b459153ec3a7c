"""Training instances: mismatches under channel states, each with an action, repair or skip (WISV Section V-B)."""

from __future__ import annotations

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

ORIGIN = "origin"


@dataclass(frozen=True, eq=False)
class Instances:
    """m instances."""

    row: NDArray[np.int32]
    """[m] of the mismatch among those that it was made of."""
    features: NDArray[np.float32]
    """[m, 5] of the channel, columns as in `channel.csi.FEATURES`."""
    quality: NDArray[np.float32]
    """[m] of the channel, q in [0, 1]."""
    p_repair: NDArray[np.float32]
    """[m] chance of a repair under the policy."""
    action: NDArray[np.bool_]
    """[m] what was drawn: True is repair."""

    def __len__(self) -> int:
        return len(self.row)

    def take(self, chosen: NDArray[Any]) -> Instances:
        """Some of them, by index or mask [m]."""
        return Instances(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


def base_instances(critical: NDArray[np.bool_]) -> Instances:
    """Every mismatch once with its base label, for a head that does not see the channel: features are 0, quality 1."""
    rows = len(critical)
    return Instances(
        np.arange(rows, dtype=np.int32),
        np.zeros((rows, len(FEATURES)), np.float32),
        np.ones(rows, np.float32),
        critical.astype(np.float32),
        critical.astype(np.bool_),
    )


def origin(meta: Meta, found: Mismatches) -> str:
    """Names the mismatches that instances were made of, so that others are refused."""
    return f"{msgspec.json.encode(meta, order='sorted').decode()}, {len(found)} mismatches"


def save_instances(instances: Instances, path: Path, made_of: str) -> None:
    """Write instances to a safetensors file.

    Raises:
        BadInput: it cannot be written.
    """
    arrays = {f.name: np.ascontiguousarray(getattr(instances, f.name)) for f in fields(instances)}
    arrays["action"] = instances.action.astype(np.uint8)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(save(arrays, {ORIGIN: made_of}))
        part.replace(path)
    except OSError as exc:
        raise BadInput(f"cannot write {path}: {exc.strerror or exc}") from exc


def load_instances(path: Path, made_of: str) -> Instances:
    """Read instances.

    Raises:
        BadInput: no such file, not one of instances, or made of other mismatches.
    """
    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            found = (file.metadata() or {}).get(ORIGIN)
    except (OSError, SafetensorError) as exc:
        raise BadInput(f"no relabelled instances in {path}: {exc}; `testbed head relabel` makes them") from exc
    names = {f.name for f in fields(Instances)}
    if arrays.keys() != names or len({len(array) for array in arrays.values()}) != 1:
        raise BadInput(f"{path} holds no relabelled instances; `testbed head relabel` makes them")
    if found != made_of:
        raise BadInput(f"{path} was made of other episodes, or before more were labelled: relabel these")
    return Instances(**(arrays | {"action": arrays["action"].astype(np.bool_)}))
