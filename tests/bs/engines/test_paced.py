"""An engine at another machine's pace: its own results, no earlier than that machine's, and lateness counted."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.paced import PacedEngine
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.cli.main import main
from testbed.errors import BadInput
from testbed.experiments.latency.station import late_share
from testbed.optim.pass_time import Coefficients, RequestWork

PACE = Coefficients(1e-3, 0.0, 1e-4, 0.01)


class Knowing(SyntheticEngine):
    """Tells how much of each prefix its cache had, and takes so long."""

    takes_s = 0.0

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        time.sleep(self.takes_s)
        return super().compute(batch)

    def cached(self, request: VerifyRequest) -> int:
        return len(request.prefix) // 2


def asked(length: int, drafted: int, session: str = "s") -> VerifyRequest:
    return VerifyRequest(session, np.arange(length, dtype=np.int32), np.arange(drafted, dtype=np.int32))


def timed(engine: PacedEngine, batch: list[VerifyRequest]) -> float:
    start_s = time.monotonic()
    engine.verify(batch)
    return time.monotonic() - start_s


def test_passes_last_as_long_as_they_should() -> None:
    """No shorter; a machine that is busy may make them longer."""
    engine = PacedEngine(Knowing(), PACE)
    batch = [asked(20, 4), asked(40, 0, "t")]
    least_s = PACE.batch_s([RequestWork(14, 10), RequestWork(20, 20)])
    assert least_s <= timed(engine, batch)
    after = engine.snapshot()
    assert after["passes"] == 1 and (after["late"] == 0) == (after["late_s"] == 0.0)


def test_what_an_engine_does_not_tell_was_seen_in_its_last_pass() -> None:
    engine = PacedEngine(SyntheticEngine(), PACE)
    assert timed(engine, [asked(60, 2)]) >= PACE.batch_s([RequestWork(62, 0)])
    again_s = PACE.batch_s([RequestWork(5, 60)])
    assert again_s <= timed(engine, [asked(63, 2)])
    engine.submit(asked(63, 2))
    assert [(share.new, share.cached) for share in engine.step()] == [(3, 62)]
    engine.release("s")
    assert timed(engine, [asked(60, 2)]) >= PACE.batch_s([RequestWork(62, 0)])


def test_results_are_the_engine_s_own_and_refusals_too() -> None:
    engine, own = PacedEngine(SyntheticEngine(), PACE), SyntheticEngine()
    found, right = engine.verify([asked(9, 3)])[0], own.verify([asked(9, 3)])[0]
    assert found.argmax.tolist() == right.argmax.tolist() and found.margin.tolist() == right.margin.tolist()
    assert (engine.vocab_size, engine.max_positions, engine.kv_tokens) == (own.vocab_size, own.max_positions, None)
    with pytest.raises(BadInput):
        engine.verify([asked(0, 3)])


def test_passes_that_took_longer_are_counted() -> None:
    inner = Knowing()
    engine = PacedEngine(inner, Coefficients(0.0, 0.0, 0.0, 0.005))
    inner.takes_s = 0.02
    engine.verify([asked(9, 1)])
    counted = engine.snapshot()
    assert counted["passes"] == counted["late"] == 1 and counted["late_s"] >= 0.015


def test_how_far_passes_exceeded_the_pace_is_that_of_the_last_line(tmp_path: Path) -> None:
    lines = [{"busy_s": 1.0}, {"busy_s": 8.0, "pace": {"passes": 8, "late": 3, "late_s": 2.0}}]
    (tmp_path / "bs.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert late_share(tmp_path / "bs.jsonl") == 0.25
    (tmp_path / "bs.jsonl").write_text(json.dumps(lines[0]) + "\n")
    assert late_share(tmp_path / "bs.jsonl") is None


@pytest.mark.parametrize("given", ["probe", "nowhere", "nowhere.json"])
def test_a_pace_that_is_none(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bs", "serve", "--engine", "synthetic", "--pace", given]) == 2
    assert capsys.readouterr().err.count("\n") == 1
