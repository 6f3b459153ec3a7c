"""The metrics file: whole lines of JSON, in order, the last one at the end."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from testbed.bs.metrics import MOST_SPEEDS, Metrics, MetricsFile, by_speed
from testbed.bs.observer import FinishedPass
from testbed.errors import BadInput
from testbed.virtual_time import VirtualClock, run_virtually


def a_pass(seconds: float, expected_s: float | None = None) -> FinishedPass:
    return FinishedPass([], 0, 0, 0, 0.0, seconds, expected_s)


def test_a_line_every_interval_and_one_at_the_end(tmp_path: Path) -> None:
    metrics, path = Metrics(), tmp_path / "m.jsonl"
    file = MetricsFile(path, 0.5)

    async def run() -> None:
        keeping = asyncio.create_task(file.keep(metrics.snapshot, VirtualClock()))
        for _ in range(7):
            await asyncio.sleep(0.21)
            metrics.add_pass(a_pass(0.05))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    run_virtually(run())
    file.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["t_s"] for row in rows] == pytest.approx([0.5, 1.0, 1.47])
    assert [row["passes"] for row in rows] == [2, 4, 7]
    shares = [row["busy_share"] for row in rows]
    assert sum(share * past for share, past in zip(shares, (0.5, 0.5, 0.47), strict=True)) == pytest.approx(0.35)


def test_lines_go_on_after_an_error(tmp_path: Path) -> None:
    """The task is started again: times began at 0, and the first line counted the busy time since the start."""
    path = tmp_path / "m.jsonl"
    file, busy_s = MetricsFile(path, 0.5), iter([0.4, None, 0.4, 0.5])

    def snapshot() -> dict[str, float]:
        if (found := next(busy_s)) is None:
            raise ValueError
        return {"busy_s": found}

    async def run() -> None:
        with pytest.raises(ValueError):
            await file.keep(snapshot, VirtualClock())
        keeping = asyncio.create_task(file.keep(snapshot, VirtualClock()))
        await asyncio.sleep(0.9)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    run_virtually(run())
    file.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["t_s"] for row in rows] == pytest.approx([0.5, 1.5, 1.9])
    assert [row["busy_share"] for row in rows] == pytest.approx([0.8, 0.0, 0.25])


def test_lines_of_an_earlier_process_stay(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    for number in range(3):
        file = MetricsFile(path)
        file._append(b'{"number": %d}\n' % number)
        file.close()
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_the_estimators_error_is_a_running_mean() -> None:
    metrics = Metrics()
    assert metrics.error is None
    metrics.add_pass(a_pass(1.0, expected_s=0.9))
    assert metrics.error == pytest.approx(0.1)
    for _ in range(400):
        metrics.add_pass(a_pass(2.0, expected_s=2.4))
    assert metrics.error == pytest.approx(0.2, abs=1e-3)


@pytest.mark.parametrize("interval_s", [0, -1, float("nan"), float("inf")])
def test_intervals_that_cannot_be(tmp_path: Path, interval_s: float) -> None:
    with pytest.raises(BadInput, match="every"):
        MetricsFile(tmp_path / "m.jsonl", interval_s)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("emptied", [False, True])
def test_a_full_disk_leaves_lines_out_and_no_half_of_one(
    emptied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics, path = Metrics(), tmp_path / "m.jsonl"
    file = MetricsFile(path, 0.5)
    whole, full = file._file, [False, True, True, False]

    class Disk:
        """Takes half of a line where it is full; its user may empty the file, which was then filled up with zeros."""

        name, tell, truncate = str(path), staticmethod(whole.tell), staticmethod(whole.truncate)

        def write(self, line: bytes) -> int:
            if emptied and len(full) == 3:
                os.truncate(path, 0)
            return whole.write(line[: len(line) // 2] if full.pop(0) else line)

    monkeypatch.setattr(file, "_file", Disk())

    async def run() -> None:
        keeping = asyncio.create_task(file.keep(metrics.snapshot, VirtualClock()))
        await asyncio.sleep(1.6)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    run_virtually(run())
    whole.close()
    kept_s = [json.loads(line)["t_s"] for line in path.read_text().splitlines()]
    assert kept_s == pytest.approx([1.6] if emptied else [0.5, 1.6])
    assert caplog.text.count("No space left") == 2


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot write"):
        MetricsFile(tmp_path / "no" / "m.jsonl")


def test_of_ever_so_many_speeds_the_first_are_counted_each_for_itself() -> None:
    metrics = Metrics()
    for number in range(10 * MOST_SPEEDS):
        metrics.add_promised(1 + number / 7, late=number % 2 == 0)
        metrics.add_refused(1 + number / 7)
    found = metrics.snapshot()
    for name, count in (("promised_rounds", 640), ("missed_deadlines", 320), ("refused_sessions", 640)):
        assert len(found[name]) <= MOST_SPEEDS + 1 and sum(found[name].values()) == count
    assert found["promised_rounds"]["0"] == 9 * MOST_SPEEDS and found["promised_rounds"]["1"] == 1


def test_speeds_that_are_nearly_equal_are_counted_together() -> None:
    """One took the place of the other."""
    assert by_speed({8.0: 3, 8.0000001: 4, 2.0: 1}) == {"2": 1, "8": 7}
