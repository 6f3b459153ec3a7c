"""Runs that lose a process: a UE that is killed goes on with what is unfinished, a BS that is killed is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from testbed.config import ServeConfig
from testbed.experiments.runs.journal import NAME
from testbed.experiments.runs.processes import base_station
from testbed.power.files import read_samples
from tests.support.wall_clock import WallClock, wall_clock_available

METHODS = ("greedy", "sh", "target-only")
PROMPTS = 6
RUN = ["--limit", str(PROMPTS), "--protocol", ",".join(METHODS), "--threads", "1", "--json"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics") / "bs.jsonl"


def bs(**more: Any) -> contextlib.AbstractContextManager[dict[str, Any]]:
    from testbed.models.bundle import bundled

    model = str(bundled().require("target"))
    return base_station(ServeConfig(engine="transformers", model=model, threads=1, **more))


@pytest.fixture(scope="module")
def first(metrics: Path) -> Iterator[dict[str, Any]]:
    with bs(bind="tcp://127.0.0.1:*", metrics=str(metrics), metrics_interval_s=0.1) as ready:
        yield ready


@pytest.fixture(scope="module")
def whole(first: dict[str, Any]) -> dict[tuple[str, str], list[int]]:
    """The outputs of a run that nothing happens to."""
    return outputs(ue("--bs", first["bind"]))


def start(*arguments: str, more: Mapping[str, str] = MappingProxyType({})) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "testbed", "ue", "run", *RUN, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def ue(*arguments: str, code: int = 0, more: Mapping[str, str] = MappingProxyType({})) -> Any:
    process = start(*arguments, more=more)
    output, said = process.communicate(timeout=200)
    assert process.returncode == code, said
    return json.loads(output) if code == 0 else said


def outputs(document: dict[str, Any]) -> dict[tuple[str, str], list[int]]:
    found = {(o["method"], o["prompt"]): o["token_ids"] for o in document["outputs"]}
    assert len(found) == PROMPTS * len(METHODS)
    assert all(row["lossless"] is True and row["requests"] == PROMPTS for row in document["rows"])
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def place(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["method"], row["request"]


def grown(path: Path, size: int, process: subprocess.Popen[str]) -> None:
    """Wait until a journal has passed a size."""
    for _ in range(3000):
        if path.exists() and path.stat().st_size > size:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError(f"{path} did not grow")


def test_a_killed_ue_goes_on_with_what_is_unfinished(
    first: dict[str, Any], whole: dict[tuple[str, str], list[int]], metrics: Path, tmp_path: Path
) -> None:
    out, size = tmp_path / "run", 3000
    process = start("--bs", first["bind"], "--out", str(out))
    for killed in range(2):
        grown(out / NAME, size, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        size = (out / NAME).stat().st_size
        assert not (out / "summary.json").exists()
        if killed == 0:
            assert "unfinished run" in ue("--bs", first["bind"], "--out", str(out), code=2)
            assert "window 8" in ue("--bs", first["bind"], "--out", str(out), "--window", "4", "--resume", code=2)
            process = start("--bs", first["bind"], "--out", str(out), "--resume")
    assert outputs(ue("--bs", first["bind"], "--out", str(out), "--resume")) == whole
    assert not (out / NAME).exists() and (out / "summary.json").exists()
    time.sleep(0.5)
    assert json.loads(metrics.read_text().splitlines()[-1])["sessions"] == 0  # those of the killed runs, too
    assert "nothing is left to resume" in ue("--bs", first["bind"], "--out", str(out), "--resume", code=2)


@pytest.mark.skipif(wall_clock_available() is not None, reason=str(wall_clock_available()))
@pytest.mark.parametrize("back_s", [3600, int(time.time()) - 86_400], ids=["an hour", "to 1970"])
def test_a_ue_whose_date_went_back_meanwhile(first: dict[str, Any], tmp_path: Path, back_s: int) -> None:
    """A board without a battery: no power was found, or some of another part, and recorded states were out of order."""
    out, meter, clock = tmp_path / "run", tmp_path / "meter.csv", WallClock(tmp_path)
    meter.write_text("time_s,total_w\n" + "".join(f"{n / 50:.2f},{n / 50:.2f}\n" for n in range(20_000)))
    options = ["--bs", first["bind"], "--out", str(out), "--power", str(meter), "--power-idle-s", "0.2"]
    process = start(*options, more=clock.environment)
    grown(out / NAME, 3000, process)
    process.kill()
    process.communicate()
    clock.set(-back_s)
    outputs(ue(*options, "--resume", more=clock.environment))
    assert back_s - 600 < json.loads((out / "summary.json").read_text())["date_back_s"] < back_s + 100
    power = read_samples(out / "power.parquet")
    assert power.skipped <= 1 and (np.diff(power.time_s) > 0).all()
    zeros_s = {(one["method"], one["request"]): one["clock_unix_s"] for one in rows(out / "requests.parquet")}
    rounds = sorted(rows(out / "rounds.parquet"), key=lambda one: float(one["begin_s"]))  # of one monotonic clock
    times_s = [one["begin_s"] + zeros_s[place(one)] for one in rounds]
    last = rounds[-1]
    assert len(set(zeros_s.values())) == 2 and times_s == sorted(times_s)
    assert power.time_s[0] < times_s[0] and last["end_s"] + zeros_s[place(last)] < power.time_s[-1]
    assert last["energy_j"] > 0


def test_a_killed_bs_is_replaced_by_another(whole: dict[tuple[str, str], list[int]], tmp_path: Path) -> None:
    with contextlib.ExitStack() as held:
        threads = held.enter_context(ThreadPoolExecutor(2))  # which stay: Linux ends a child with its parent's thread
        one, two = threads.map(lambda _: held.enter_context(bs(bind="tcp://127.0.0.1:*")), range(2))
        out = tmp_path / "run"
        process = start("--bs", one["bind"], "--bs", two["bind"], "--failover-s", "2", "--out", str(out))
        grown(out / NAME, 3000, process)
        os.kill(one["pid"], signal.SIGKILL)
        output, said = process.communicate(timeout=200)
        assert process.returncode == 0, said
        assert f"{two['bind']} serves in place of {one['bind']}" in said
        assert outputs(json.loads(output)) == whole


def test_a_ue_that_goes_from_base_station_to_base_station_keeps_its_output(
    whole: dict[tuple[str, str], list[int]], tmp_path: Path
) -> None:
    """Three processes, two of which are killed within responses."""
    with contextlib.ExitStack() as held:
        threads = held.enter_context(ThreadPoolExecutor(3))
        stations = list(threads.map(lambda _: held.enter_context(bs(bind="tcp://127.0.0.1:*")), range(3)))
        addresses, out = [station["bind"] for station in stations], tmp_path / "run"
        named = [part for address in addresses for part in ("--bs", address)]
        process = start(*named, "--failover-s", "2", "--out", str(out))
        size = 3000
        for station in stations[:2]:
            grown(out / NAME, size, process)
            os.kill(station["pid"], signal.SIGKILL)
            time.sleep(0.5)
            size = (out / NAME).stat().st_size + 1500  # which the next one has to serve
        output, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert f"{addresses[1]} serves in place of {addresses[0]}" in said
        assert f"{addresses[2]} serves in place of {addresses[1]}" in said
        assert outputs(json.loads(output)) == whole


def test_base_stations_that_differ_are_refused_in_one_line(first: dict[str, Any]) -> None:
    with bs(bind="tcp://127.0.0.1:*", judge="digits") as other:
        said = ue("--bs", first["bind"], "--bs", other["bind"], code=2)
    assert len(said.strip().splitlines()) == 1
    assert "serves another judge or head than" in said and "digits" in said
