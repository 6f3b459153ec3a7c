"""Checks of a predictor that comes from files: its numbers are such, and can be computed with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput

MOST = 1e15
"""Largest size of a number in the arrays: sums and products of several layers stay finite."""


def check_shares(**numbers: float) -> None:
    """Refuse numbers that are no shares.

    Raises:
        BadInput: one lies outside 0..1, or is NaN.
    """
    for name, value in numbers.items():
        if not 0 <= value <= 1:
            raise BadInput(f"{name} of a predictor lies in 0..1, not {value}")


def check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse arrays of other kinds than numbers, or with numbers that are not finite or too large.

    Raises:
        ValueError: there are some.
    """
    for name, values in arrays.items():
        if values.dtype.kind not in "iuf" or not (np.abs(values.astype(np.float64)) <= MOST).all():
            raise ValueError(f"{name} has values that are no numbers up to {MOST:g}")


def check_layers(weights: Sequence[NDArray[Any]], biases: Sequence[NDArray[Any]], inputs: int) -> None:
    """Refuse layers that do not follow each other, from `inputs` values to one.

    Raises:
        ValueError: they do not.
    """
    sizes = [w.shape for w in weights]
    if not sizes or {w.ndim for w in weights} != {2} or sizes[0][0] != inputs or sizes[-1][1] != 1:
        raise ValueError(f"layers of {sizes}")
    if not all(a[1] == b[0] for a, b in itertools.pairwise(sizes)):
        raise ValueError(f"layers of {sizes}")
    if [b.shape for b in biases] != [(size[1],) for size in sizes]:
        raise ValueError("biases do not fit their layers")
