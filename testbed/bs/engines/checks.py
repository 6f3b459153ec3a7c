"""Checks of a batch, shared by all engines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyRequest
from testbed.errors import BadInput


def prompt_of(request: VerifyRequest) -> NDArray[np.int32]:
    """[prefix + K] committed prefix and drafted tokens, the input of the target."""
    return np.concatenate([request.prefix, request.draft]).astype(np.int32, copy=False)


def check_batch(batch: Sequence[VerifyRequest], vocab_size: int, max_positions: int) -> None:
    """Refuse a batch that no engine can verify.

    Raises:
        BadInput: an empty prefix, ids outside the vocabulary, or more positions than `max_positions`.
    """
    for request in batch:
        if len(request.prefix) == 0:
            raise BadInput(f"session {request.session}: the prefix is empty, but a pass needs one token or more")
        positions = len(request.prefix) + len(request.draft) + 1
        if positions > max_positions:
            raise BadInput(f"session {request.session}: {positions} positions, but the target takes {max_positions}")
        ids = prompt_of(request)
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise BadInput(f"session {request.session}: token ids outside the vocabulary of {vocab_size}")
