"""UEs that stand still, and others that are served, while a cell with processes runs."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.real import radio, run
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.deployment import distortions
from testbed.ue.client import Client
from tests.support.hostile.honest import decode


def test_ues_that_begin_late_or_not_at_all_stand_still_for_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The time until they began was told as a standstill, and one that began after the run's end had no report."""
    monkeypatch.setattr(radio, "LEAD_S", 0.5)
    monkeypatch.setattr(run, "STOPPING_S", 6.0)
    begins_s = {"soon": 0.0, "later": 2.5, "never": 100.0}
    groups = tuple(UeGroup(name=name, begin_s=begin_s, response=(5, 15)) for name, begin_s in begins_s.items())
    found = run_cell_really(CellConfig(seconds=4.0, warmup_s=0.5, ues=groups)).groups
    assert [tally.tokens > 0 for _, tallies in found for tally in tallies] == [True, True, False]
    assert not [one for one in caplog.records if "stood still" in one.getMessage()]
    assert "other programs" not in caplog.text


def test_a_ue_that_stood_still_is_told_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its group's latencies and late responses included that, without a word."""
    wait_for, waits = run._wait, list[float]()

    def wait(radio: BaseProcess, ues: Sequence[BaseProcess], until_s: float, tick: Callable[[], object]) -> None:
        waits.append(until_s)
        if len(waits) == 2:  # after the warm-up
            os.kill(ues[0].pid or 0, signal.SIGSTOP)
            time.sleep(2.0)
            os.kill(ues[0].pid or 0, signal.SIGCONT)
        wait_for(radio, ues, until_s, tick)

    monkeypatch.setattr(run, "_wait", wait)
    monkeypatch.setattr(radio, "LEAD_S", 0.5)
    run_cell_really(CellConfig(seconds=8.0, warmup_s=4.0, ues=(UeGroup(name="a", response=(5, 15)),)))
    assert [one for one in caplog.records if "stood still" in one.getMessage()]


def test_standstills_of_a_base_station_count_that_begin_before_or_end_after(tmp_path: Path) -> None:
    """One that spanned the begin of a load was in no figure."""
    path = tmp_path / "metrics.jsonl"
    times_s = [0.0, 1.0, 2.0, 6.0, 7.0, 8.0, 14.0, 15.0]
    path.write_text("".join(f'{{"t_s": {t_s}}}\n' for t_s in times_s))
    for from_s, to_s, still_s in [(3, 7.5, 3.0), (6, 8, 0.0), (6, 9, 5.0), (15, 20, 0.0), (1, 2, 0.0), (0, 20, 5.0)]:
        assert distortions.metrics_still_s(path, 1.0, from_s, to_s) == still_s


def test_processes_that_are_stopped_are_seen() -> None:
    with subprocess.Popen(["sleep", "60"]) as process, distortions.StoppedWatch([os.getpid(), process.pid]) as watch:
        time.sleep(0.5)
        assert watch.still_s == 0
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.5)
        seen_s = watch.still_s
        process.kill()
    assert 0.5 < seen_s < 30.0


BEATS = """
import os, signal, time
from testbed.experiments.deployment.distortions import BeatingThread
with BeatingThread() as beat:
    time.sleep(0.3)
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.3)
print(beat.still_s)
"""


def test_a_command_that_stood_still_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """UEs that send their requests together wait for it, and it takes the counters."""
    with subprocess.Popen([sys.executable, "-c", BEATS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGCONT)
        still_s = float(process.stdout.read())
    assert 1.0 < still_s < 30.0
    distortions.warn_still(still_s, 0.0, [0.0], [])
    distortions.warn_still(0.5, 0.0, [0.0], [])
    (warned,) = caplog.records
    assert warned.getMessage().startswith("this command stood still for")


def test_rounds_of_others_are_told_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """They were in the passes and the busy time, without a word."""
    processes = run._run_processes

    async def decode_beside(address: str) -> None:
        client = Client(ZmqLink(address, new_identity()), WallClock(), 1)
        try:
            await client.connect("", 512)
            for number in itertools.count():
                await decode(client, ("greedy", 0.0, False), [1, 2, 3, number % 90])
        finally:
            await client.close()

    def run_beside(config: CellConfig, servings: Sequence[tuple[str, Path]], *args: Any) -> Any:
        loop = asyncio.new_event_loop()
        other = loop.create_task(decode_beside(servings[0][0]))
        thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([other])))
        thread.start()
        try:
            return processes(config, servings, *args)
        finally:
            loop.call_soon_threadsafe(other.cancel)
            thread.join()
            loop.close()

    config = CellConfig(seconds=5.0, warmup_s=1.0, ues=(UeGroup(name="a", response=(5, 15)),))
    monkeypatch.setattr(radio, "LEAD_S", 0.5)
    monkeypatch.setattr(run, "_run_processes", run_beside)
    run_cell_really(config)
    assert "other programs use its base stations" in caplog.text
