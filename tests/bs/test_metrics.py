"""The metrics file: whole lines of JSON, in order, the last one at the end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from testbed.bs.metrics import Metrics, MetricsFile
from testbed.errors import BadInput
from testbed.virtual_time import VirtualClock, run_virtually


def test_a_line_every_interval_and_one_at_the_end(tmp_path: Path) -> None:
    metrics, path = Metrics(), tmp_path / "m.jsonl"
    file = MetricsFile(path, 0.5)

    async def run() -> None:
        keeping = asyncio.create_task(file.keep(metrics.snapshot, VirtualClock()))
        for _ in range(7):
            await asyncio.sleep(0.21)
            metrics.add_pass([], 0, 0, 0.05)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    run_virtually(run())
    file.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["t_s"] for row in rows] == pytest.approx([0.5, 1.0, 1.47])
    assert [row["passes"] for row in rows] == [2, 4, 7]
    shares = [row["busy_share"] for row in rows]
    assert sum(share * past for share, past in zip(shares, (0.5, 0.5, 0.47), strict=True)) == pytest.approx(0.35)


def test_the_estimators_error_is_a_running_mean() -> None:
    metrics = Metrics()
    assert metrics.error is None
    metrics.add_error(0.9, 1.0)
    assert metrics.error == pytest.approx(0.1)
    for _ in range(400):
        metrics.add_error(2.4, 2.0)
    assert metrics.error == pytest.approx(0.2, abs=1e-3)


@pytest.mark.parametrize("interval_s", [0, -1, float("nan"), float("inf")])
def test_intervals_that_cannot_be(tmp_path: Path, interval_s: float) -> None:
    with pytest.raises(BadInput, match="every"):
        MetricsFile(tmp_path / "m.jsonl", interval_s)
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot write"):
        MetricsFile(tmp_path / "no" / "m.jsonl")
