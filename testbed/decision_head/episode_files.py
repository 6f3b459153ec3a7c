"""Checks of the arrays of episodes that come from files: their kinds, shapes and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput

INDICES = ("prompt", "order", "position", "draft_id", "target_id", "prompt_len")
STATES = {"drafter_hidden": 0, "target_hidden": 1, "drafter_after": 0, "target_after": 1}
"""Arrays of states, and whose: the drafter's, the target's."""
MOST_STATE = 1e9
"""Largest size of a hidden state's entry."""


def check_chunk(arrays: Mapping[str, NDArray[Any]], widths: tuple[int, int]) -> None:
    """Refuse arrays that are no chunk of mismatches, see `Mismatches`.

    Args:
        widths: d_d and d_t.

    Raises:
        BadInput: missing or further arrays, other kinds or shapes, indices that cannot be, or states that are not
            finite or far too large.
    """
    known = {*INDICES, *STATES, "prefix_start", "prefix_ids"}
    if set(arrays) != known:
        raise BadInput(f"its arrays are {', '.join(sorted(arrays)) or 'none'}, not {', '.join(sorted(known))}")
    count = len(arrays["prompt"]) if arrays["prompt"].ndim else 0
    for name in INDICES:
        _check_indices(name, arrays[name], (count,))
    for name, whose in STATES.items():
        _expect(name, arrays[name], "f", (count, widths[whose]))
        if not (np.abs(arrays[name].astype(np.float32)) <= MOST_STATE).all():  # nor is NaN
            raise BadInput(f"{name} has states that are not finite, or above {MOST_STATE:g}: collect them again")
    starts, ids = arrays["prefix_start"], arrays["prefix_ids"]
    _check_indices("prefix_start", starts, (count + 1,))
    _check_indices("prefix_ids", ids, (ids.size,))
    if starts[0] != 0 or starts[-1] != len(ids) or (np.diff(starts.astype(np.int64)) < 0).any():
        raise BadInput("prefix_start does not divide prefix_ids")


def check_labels(arrays: Mapping[str, NDArray[Any]], known: tuple[int, ...]) -> None:
    """Refuse arrays that are no labels of a chunk.

    Args:
        known: the labels that there are.

    Raises:
        BadInput: missing arrays, other kinds or shapes, or unknown labels.
    """
    if set(arrays) != {"label", "completions"}:
        raise BadInput(f"its arrays are {', '.join(sorted(arrays)) or 'none'}, not label, completions")
    _expect("label", arrays["label"], "i", (arrays["label"].size,))
    _check_indices("completions", arrays["completions"], (1,))
    if not np.isin(arrays["label"], known).all():
        raise BadInput(f"labels are {', '.join(map(str, sorted(known)))}")


def _check_indices(name: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    _expect(name, values, "i", shape)
    if values.size and values.min() < 0:
        raise BadInput(f"{name} has numbers below 0")


def _expect(name: str, values: NDArray[Any], kind: str, shape: tuple[int, ...]) -> None:
    if values.dtype.kind != kind or values.shape != shape:
        kinds = {"i": "integers", "f": "floats"}
        raise BadInput(f"{name} needs {kinds[kind]} {list(shape)}, not {values.dtype} {list(values.shape)}")
