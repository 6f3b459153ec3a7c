"""An engine at another machine's pace: real passes, delayed to that machine's pass times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from testbed.bs.engines.base import VerifyEngine, VerifyRequest, VerifyResult
from testbed.optim.pass_time import Coefficients, RequestWork


class PacedEngine:
    """Implements `VerifyEngine`: another engine, each of whose passes is delayed until T̂ of eq. 19 (WISP) has elapsed.
    Passes that take longer than T̂ are counted as late.

    If the engine does not report cached tokens, the session's previous prefix counts as cached.
    """

    def __init__(self, engine: VerifyEngine, pace: Coefficients) -> None:
        self._engine, self._pace = engine, pace
        self._seen: dict[str, int] = {}
        self._passes = self._late = 0
        self._late_s = 0.0
        self.model_name, self.vocab_size, self.hidden_size = engine.model_name, engine.vocab_size, engine.hidden_size
        self.max_positions, self.max_batch_tokens = engine.max_positions, engine.max_batch_tokens
        self.block_size, self.kv_tokens = engine.block_size, engine.kv_tokens

    def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """See `VerifyEngine.verify`."""
        start_s = time.monotonic()
        results = self._engine.verify(batch)
        lasts_s = self._pace.batch_s(map(self._work, batch, results))
        left_s = start_s + lasts_s - time.monotonic()
        self._passes += 1
        if left_s > 0:
            time.sleep(left_s)
        else:
            self._late += 1
            self._late_s -= left_s
        return results

    def release(self, session: str) -> None:
        """See `VerifyEngine.release`."""
        self._seen.pop(session, None)
        self._engine.release(session)

    def close(self) -> None:
        """See `VerifyEngine.close`."""
        self._engine.close()

    def snapshot(self) -> dict[str, Any]:
        """Passes, late passes, and their total delay [s]."""
        return {"passes": self._passes, "late": self._late, "late_s": self._late_s}

    def _work(self, request: VerifyRequest, result: VerifyResult) -> RequestWork:
        total = len(request.prefix) + len(request.draft)
        cached = result.cached
        if cached is None:
            cached = min(self._seen.get(request.session, 0), len(request.prefix) - 1)
            self._seen[request.session] = len(request.prefix)
        return RequestWork(total - cached, cached)
