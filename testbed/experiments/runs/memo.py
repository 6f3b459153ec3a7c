"""Memoised target: runs over the same tokens share results, whatever their link, window or protocol.

The target is greedy and so a function of the prefix; the drafter is in `memo_drafter.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult
from testbed.bs.engines.batched import BatchedEngine

Key = bytes
"""Digest of a prefix."""


def hasher_of(ids: NDArray[np.int32]) -> hashlib.blake2b:
    return hashlib.blake2b(np.ascontiguousarray(ids, np.int32).tobytes(), digest_size=16)


def _keys(prefix: NDArray[np.int32], draft: NDArray[np.int32]) -> list[Key]:
    """Digests of prefix + draft[:i], i = 0..K."""
    hasher = hasher_of(prefix)
    keys = [hasher.digest()]
    for token in draft:
        hasher.update(np.int32(token).tobytes())
        keys.append(hasher.digest())
    return keys


def _missed(draft: NDArray[np.int32], argmax: NDArray[np.int32]) -> list[int]:
    """Rows of a result whose hidden states judges may use: those of mismatches, and those after them."""
    rows = np.flatnonzero(draft != argmax[:-1])
    return np.unique(np.concatenate([rows, rows + 1])).tolist()  # type: ignore[no-any-return]


class _KeptRow(NamedTuple):
    """Target result after a prefix."""

    argmax: int
    margin: float


class MemoEngine(BatchedEngine):
    """Results from memory where known, else from the engine.

    Distributions are not stored: requests for them always go to the engine. Hidden states are stored only where a
    drafted token is not the argmax, and after it, since judges use no others; the other rows of a result from memory
    are zero.

    Args:
        hidden: request hidden states in every pass, so that they are known later.
    """

    def __init__(self, engine: VerifyEngine, hidden: bool = False) -> None:
        super().__init__()
        self._engine, self._hidden = engine, hidden
        self.model_name, self.vocab_size = engine.model_name, engine.vocab_size
        self.hidden_size, self.max_positions = engine.hidden_size, engine.max_positions
        self.max_batch_tokens = engine.max_batch_tokens
        self.block_size, self.kv_tokens = engine.block_size, engine.kv_tokens
        self.max_sessions = engine.max_sessions
        self._rows: dict[Key, _KeptRow] = {}
        self._gaps: dict[tuple[Key, int], float] = {}
        self._states: dict[Key, NDArray[np.float32]] = {}
        self.asked = self.passed = 0
        """Number of requests, and of those that the engine computed."""

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """See `BatchedEngine.compute`."""
        keys = [_keys(r.prefix, r.draft) for r in batch]
        known = [None if r.logprobs else self._known(r, k) for r, k in zip(batch, keys, strict=True)]
        new = [i for i, result in enumerate(known) if result is None]
        self.asked += len(batch)
        self.passed += len(new)
        asked = [replace(batch[i], hidden=batch[i].hidden or self._hidden) for i in new]
        results = dict(zip(new, self._engine.verify(asked) if asked else [], strict=True))
        for i, result in results.items():
            self._keep(batch[i], keys[i], result)
        return [result if result is not None else results[i] for i, result in enumerate(known)]

    def _known(self, request: VerifyRequest, keys: list[Key]) -> VerifyResult | None:
        rows = [self._rows.get(key) for key in keys]
        gaps = []
        for row, key, token in zip(rows, keys, request.draft.tolist(), strict=False):
            gap = 0.0 if row is not None and row.argmax == token else self._gaps.get((key, token))
            if row is None or gap is None:
                return None
            gaps.append(gap)
        if rows[-1] is None:
            return None
        said = [row for row in rows if row is not None]
        hidden = None
        if request.hidden:
            missed = _missed(request.draft, np.array([row.argmax for row in said], np.int32))
            states = [self._states.get(keys[i]) for i in missed]
            hidden = np.zeros((len(keys), self.hidden_size), np.float32)
            for i, state in zip(missed, states, strict=True):
                if state is None:
                    return None
                hidden[i] = state
        return VerifyResult(
            argmax=np.array([row.argmax for row in said], np.int32),
            margin=np.array([row.margin for row in said], np.float32),
            draft_gap=np.array(gaps, np.float32),
            hidden=hidden,
        )

    def _keep(self, request: VerifyRequest, keys: list[Key], result: VerifyResult) -> None:
        for key, argmax, margin in zip(keys, result.argmax.tolist(), result.margin.tolist(), strict=True):
            self._rows.setdefault(key, _KeptRow(argmax, margin))
        for key, token, gap in zip(keys, request.draft.tolist(), result.draft_gap.tolist(), strict=False):
            self._gaps.setdefault((key, token), gap)
        if result.hidden is not None:
            for i in _missed(request.draft, result.argmax):
                self._states.setdefault(keys[i], result.hidden[i].copy())

    def release(self, session: str) -> None:
        """See `VerifyEngine.release`."""
        super().release(session)
        self._engine.release(session)

    def close(self) -> None:
        """Free the model and the memory."""
        self._rows.clear()
        self._gaps.clear()
        self._states.clear()
        self._engine.close()
