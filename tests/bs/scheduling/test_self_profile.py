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

    def __init__(self, times: Coefficients, block_size: int, tells: bool, **options: int) -> None:
        super().__init__(**options)
        self.block_size, self._tells, self._times = block_size, tells, times
        self.now_s, self.seen = 0.0, dict[str, int]()

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        works, results = [], []
        for request, result in zip(batch, super().compute(batch), strict=True):
            total = len(request.prefix) + len(request.draft)
            cached = self.seen.get(request.session, 0) // self.block_size * self.block_size
            self.seen[request.session] = len(request.prefix)
            works.append(RequestWork(total - cached, cached))
            told = cached if self._tells else None
            results.append(VerifyResult(result.argmax, result.margin, result.draft_gap, cached=told))
        self.now_s += self._times.batch_s(works)
        return results

    def release(self, session: str) -> None:
        del self.seen[session]


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("block", [1, 16])
def test_times_come_back(monkeypatch: pytest.MonkeyPatch, tells: bool, block: int) -> None:
    times = Coefficients(2e-4, 3e-8, 5e-6, 0.01)
    engine = Timed(times, block, tells)
    monkeypatch.setattr(module.time, "perf_counter", lambda: engine.now_s)
    found, error = self_profile(engine)
    assert found.values == pytest.approx(times.values, rel=1e-6)
    assert error < 1e-6
    assert not engine.seen


def test_a_context_that_holds_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Timed(Coefficients(2e-4, 0, 0, 0.01), 32, tells=True, max_model_len=12)
    monkeypatch.setattr(module.time, "perf_counter", lambda: engine.now_s)
    found, _ = self_profile(engine)
    assert found.alone_s(6, 0) == pytest.approx(0.01 + 6 * 2e-4, rel=1e-6)
