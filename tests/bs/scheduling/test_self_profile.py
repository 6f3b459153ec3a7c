"""The self-profile: engines whose passes take a known time, by a clock that we hold."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.scheduling import self_profile as module
from testbed.bs.scheduling.self_profile import self_profile
from testbed.optim.pass_time import Coefficients, RequestWork


class Timed(SyntheticEngine):
    """Passes take what coefficients say; what is cached is what a session saw before, in blocks."""

    def __init__(self, times: Coefficients, block_size: int, **options: int | None) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.block_size, self._times = block_size, times
        self.now_s, self.passes = 0.0, 0

    def cached(self, request: VerifyRequest) -> int:
        return super().cached(request) // self.block_size * self.block_size

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        cached = [self.cached(request) for request in batch]
        works = [RequestWork(len(r.prompt) - known, known) for r, known in zip(batch, cached, strict=True)]
        self.now_s += self._times.batch_s(works)
        self.passes += 1
        return super().compute(batch)


@pytest.mark.parametrize("chunk", [None, 128])
@pytest.mark.parametrize("block", [1, 16])
def test_times_come_back(monkeypatch: pytest.MonkeyPatch, chunk: int | None, block: int) -> None:
    """Also of an engine that computes the longest prompts in several passes."""
    times = Coefficients(2e-4, 3e-8, 5e-6, 0.01)
    engine = Timed(times, block, chunk_tokens=chunk)
    monkeypatch.setattr(module.time, "perf_counter", lambda: engine.now_s)
    found, error = self_profile(engine)
    assert found.values == pytest.approx(times.values, rel=1e-6)
    assert error < 1e-6
    assert not engine._prompts and (engine.passes > 14) == (chunk is not None)


def test_a_context_that_holds_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Timed(Coefficients(2e-4, 0, 0, 0.01), 32, max_model_len=12)
    monkeypatch.setattr(module.time, "perf_counter", lambda: engine.now_s)
    found, _ = self_profile(engine)
    assert found.alone_s(6, 0) == pytest.approx(0.01 + 6 * 2e-4, rel=1e-6)
