"""An engine at another machine's pace: real passes, delayed to that machine's pass times."""

from __future__ import annotations

import time
from typing import Any

from testbed.bs.engines.base import Share, VerifyEngine, VerifyRequest
from testbed.optim.pass_time import Coefficients, RequestWork


class PacedEngine(VerifyEngine):
    """Another engine, each of whose passes is delayed until T̂ of eq. 19 (WISP) has elapsed; longer ones are counted as
    late.
    """

    def __init__(self, engine: VerifyEngine, pace: Coefficients) -> None:
        self._engine, self._pace = engine, pace
        self._passes = self._late = 0
        self._late_s = 0.0
        self.model_name, self.vocab_size, self.hidden_size = engine.model_name, engine.vocab_size, engine.hidden_size
        self.max_positions, self.max_batch_tokens = engine.max_positions, engine.max_batch_tokens
        self.block_size, self.kv_tokens = engine.block_size, engine.kv_tokens
        self.max_sessions = engine.max_sessions

    def submit(self, request: VerifyRequest) -> None:
        """See `VerifyEngine.submit`."""
        self._engine.submit(request)

    def step(self) -> list[Share]:
        """See `VerifyEngine.step`."""
        start_s = time.monotonic()
        shares = self._engine.step()
        if not shares:
            return shares
        lasts_s = self._pace.batch_s(RequestWork(share.new, share.cached) for share in shares)
        left_s = start_s + lasts_s - time.monotonic()
        self._passes += 1
        if left_s > 0:
            time.sleep(left_s)
        else:
            self._late += 1
            self._late_s -= left_s
        return shares

    def own(self, request: VerifyRequest) -> int | None:
        """See `VerifyEngine.own`."""
        return self._engine.own(request)

    def release(self, session: str) -> None:
        """See `VerifyEngine.release`."""
        self._engine.release(session)

    def close(self) -> None:
        """See `VerifyEngine.close`."""
        self._engine.close()

    def snapshot(self) -> dict[str, Any]:
        """Passes, late passes, and their total delay [s]."""
        return {"passes": self._passes, "late": self._late, "late_s": self._late_s}
