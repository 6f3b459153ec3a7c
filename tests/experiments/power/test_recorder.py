"""Power during a run, and energy accounting of finished runs."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from testbed.clock import unix_zero_s
from testbed.config import RunConfig
from testbed.errors import BadInput, TestbedError
from testbed.experiments.power.account import account_run
from testbed.experiments.power.read import read_power
from testbed.experiments.power.recorder import PowerWatch, check_power, finish, settled, source_of, watching
from testbed.experiments.report.page import write_report
from testbed.experiments.results import directory as results
from testbed.experiments.results.files import read_rounds, write_requests, write_rounds
from testbed.experiments.results.rows import PARTS
from testbed.power.files import read_samples, write_parquet
from testbed.power.reading import Reading
from testbed.power.replay import Replay
from testbed.power.series import Samples
from testbed.ue.run import Outcome
from tests.experiments.results.test_energy import ZERO_S, request, round_, steady
from tests.support.refusals import refuse


def recorded(seconds: float = 30.0, watts: float = 4.0) -> Samples:
    times_s = np.arange(0, seconds, 0.02)
    return Samples(times_s, np.full(len(times_s), watts), {"VDD_IN": np.full(len(times_s), watts)}, source="file")


def meter(path: Path, seconds: float = 30.0) -> str:
    lines = [f"{t:.2f},4.0" for t in np.arange(0, seconds, 0.02)]
    path.write_text("time_s,VDD_IN_w\n" + "\n".join(lines) + "\n")
    return str(path)


# ---------------------------------------------------------------- beside a run


def outcome(begin_s: float, seconds: float, method: str = "greedy", number: int = 0) -> Outcome:
    """A request of one round, on this process's clock."""
    record = replace(request(round_(begin_s, seconds / 2, seconds / 2)), clock_unix_s=unix_zero_s())
    return Outcome(method, number, record)


def test_a_run_is_watched_from_idle_to_its_end(tmp_path: Path) -> None:
    watch = PowerWatch(Replay(recorded()), tmp_path)
    watch.idle(0.3)
    begin_s = time.perf_counter()
    time.sleep(0.4)
    outcomes, power = settled(watch, [outcome(begin_s + 0.05, 0.25)])
    assert power is not None
    assert power["idle_w"] == pytest.approx(4.0)
    assert power["idle_s"] >= 0.3
    assert (power["source"], power["failure"], power["temp_c_max"]) == ("file", None, None)
    record = outcomes[0].record.rounds[0]
    if power["gaps"] == 0:  # a machine that stood still for long had no samples to take
        assert record.energy_j == pytest.approx(1.0, rel=1e-6)
        assert record.draft_j == pytest.approx(0.5, rel=1e-6)
    samples = read_samples(tmp_path / "power.parquet")
    assert len(samples.time_s) == power["samples"]
    assert abs(samples.time_s[-1] - time.time()) < 3600
    assert (tmp_path / "power.csv").exists()
    finish(tmp_path)
    assert not (tmp_path / "power.csv").exists()


def test_a_run_that_breaks_off_leaves_its_samples_to_the_one_that_goes_on(tmp_path: Path) -> None:
    config = RunConfig(power=meter(tmp_path / "meter.csv"), power_idle_s=0.1)
    with contextlib.suppress(KeyError), source_of(config) as source, watching(config, source, tmp_path, False) as watch:
        assert watch is not None
        time.sleep(0.2)
        raise KeyError
    before = (tmp_path / "power.csv").read_text()
    assert before.count("\n") > 3
    with source_of(config) as source, watching(config, source, tmp_path, True) as watch:
        time.sleep(0.2)
        _, power = settled(watch, [])
    assert (tmp_path / "power.csv").read_text().startswith(before)
    assert power is not None
    assert power["samples"] >= before.count("\n") - 2 + 2


def test_without_power_there_is_nothing(tmp_path: Path) -> None:
    with source_of(RunConfig()) as source, watching(RunConfig(), source, tmp_path, False) as watch:
        assert settled(watch, []) == ([], None)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_directory_leaves_nothing(tmp_path: Path) -> None:
    watch = PowerWatch(Replay(recorded()), None)
    time.sleep(0.2)
    _, power = settled(watch, [])
    watch.leave()
    assert power is not None
    assert power["idle_w"] is None


def test_no_samples_at_all_are_an_error(tmp_path: Path) -> None:
    class Once(Replay):
        """The same reading each time."""

        def read(self) -> Reading:
            return Reading(5.0, {}, 1.0)

    watch = PowerWatch(Once(recorded()), tmp_path)
    refuse(
        lambda: settled(watch, []),
        TestbedError,
        "no power was measured",
        "and --resume finishes the run",
    )
    watch.leave()


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"power": "solar"}, "unknown power source"),
        ({"power": "auto", "power_period_s": 0.0}, "power-period-s must lie in [0.002, 60]"),
        ({"power": "auto", "power_idle_s": -1.0}, "power-idle-s must lie in"),
        ({"power": "auto", "power_idle_s": float("nan")}, "power-idle-s must lie in"),
    ],
)
def test_options_that_make_no_sense_are_refused(more: dict[str, Any], word: str) -> None:
    refuse(lambda: check_power(RunConfig(**more)), BadInput, word)


# ---------------------------------------------------------------- after a run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two methods: rounds from 1 s to 22 s after `ZERO_S`."""
    path = tmp_path / "run"
    path.mkdir()
    outcomes = [
        Outcome("greedy", 0, request(round_(1.0, 0.4, 0.8, 0.2), round_(3.0, 0.4, 0.8, 0.2))),
        Outcome("colocated", 0, request(round_(20.0, 1.0, 1.0))),
    ]
    write_rounds(path, outcomes)
    write_requests(path, outcomes, {})
    rows = [{"method": "greedy", "latency_s": 1.4, "requests": 1}, {"method": "colocated", "latency_s": 2.0}]
    rows = [{"window": 4, "aal": 4.0, "rounds": 2.0, **dict.fromkeys(PARTS, 0.1), **row} for row in rows]
    results.write_summary(path, results.summary({}, 7, results.host(), rows))
    return path


def test_a_meters_samples_are_laid_over_a_run(run: Path, tmp_path: Path) -> None:
    before = read_rounds(run).to_pylist()
    file = tmp_path / "meter.csv"
    file.write_text("time_s,total_w\n" + "".join(f"{t / 10:.1f},{10.0}\n" for t in range(300)))
    refuse(lambda: account_run(run, file), BadInput, "--offset-s", "--align")
    found = account_run(run, file, offset_s=ZERO_S)
    assert found["rows"][0]["energy_j"] == pytest.approx(28.0, rel=1e-5)
    assert found["rows"][0]["energy_per_token_j"] == pytest.approx(28.0 / 8, rel=1e-5)
    assert found["rows"][1]["energy_j"] is None
    document = results.read_summary(run)
    assert document["rows"][0]["draft_j"] == pytest.approx(8.0, rel=1e-5)
    assert (document["rows"][0]["latency_s"], document["power"]["source"]) == (1.4, "file")
    after = read_rounds(run).to_pylist()
    ours = ("energy_j", "draft_j", "link_j", "wait_j", "other_j", "power_gap_s", "temp_c", "throttled")
    assert [{k: v for k, v in row.items() if k not in ours} for row in after] == [
        {k: v for k, v in row.items() if k not in ours} for row in before
    ]
    assert [row["energy_j"] for row in after] == pytest.approx([14.0, 14.0, 20.0], rel=1e-5)
    assert account_run(run, None) == found  # by its own samples, the same again


def test_a_meter_beside_a_run_whose_date_went_back(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It had the power of another time, without a word."""
    document = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(document | {"date_back_s": 60.0}))
    samples = tmp_path / "meter.parquet"
    write_parquet(samples, steady(watts=2.0))
    account_run(run, samples)
    assert "the date went back within this run" in caplog.text


def test_a_meter_that_began_with_the_run(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "meter.csv"
    file.write_text("time_s,total_w\n" + "".join(f"{t / 10:.1f},{10.0 + t}\n" for t in range(300)))
    refuse(lambda: account_run(run, file, offset_s=1.0, align=True), BadInput, "not both")
    account_run(run, file, align=True)
    samples = read_samples(run / "power.parquet")
    assert samples.time_s[0] == pytest.approx(ZERO_S + 1.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"power": [1]}, "the `power` of summary.json is damaged"),
        ({"power": {"idle_w": "x"}}, "the `power` of summary.json is damaged"),
        ({"rows": [{}]}, "has 1 rows without a method"),
    ],
)
def test_a_damaged_summary_is_refused_in_one_line(change: dict[str, Any], said: str, run: Path) -> None:
    """It left a traceback."""
    write_parquet(run / "power.parquet", steady())
    document = results.read_summary(run) | change
    (run / "summary.json").write_text(json.dumps(document))
    refuse(lambda: account_run(run, None), BadInput, said)
    assert results.read_summary(run) == document


def test_runs_that_cannot_be_accounted_for_are_refused(run: Path, tmp_path: Path) -> None:
    refuse(lambda: account_run(run, None), BadInput, "power.parquet")
    outcomes = [Outcome("greedy", 0, request(round_(1.0, 0.4, 0.8), zero_s=None))]
    write_rounds(run, outcomes)
    write_requests(run, outcomes, {})
    write_parquet(run / "power.parquet", steady())
    refuse(lambda: account_run(run, None), BadInput, "has no time stamps")
    refuse(lambda: account_run(tmp_path, None), BadInput, "not a run directory")


@pytest.mark.parametrize("state", [{"per_up": 0.5}, {"uplink_mbps": 1e308, "downlink_mbps": 1.0, "rtt_ms": -1.0}])
def test_rounds_with_an_impossible_channel_state_are_refused(state: dict[str, float], run: Path) -> None:
    """They were an error of the program: a required value was missing, or one was out of its range."""
    rows = [row | {f"csi_{name}": value for name, value in state.items()} for row in read_rounds(run).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows), run / "rounds.parquet")
    write_parquet(run / "power.parquet", steady())
    refuse(lambda: account_run(run, None), BadInput, "rounds.parquet is not sufficient")


def test_a_report_shows_energy_and_throttling(run: Path, tmp_path: Path) -> None:
    lines = [f"{t / 10:.1f},{10.0},{45 + t / 50:.2f},{'thermal' if 25 < t < 45 else 'no'}" for t in range(300)]
    file = tmp_path / "meter.csv"
    file.write_text("time_s,total_w,temp_c,throttled\n" + "\n".join(lines[:100] + lines[160:]) + "\n")
    account_run(run, file, offset_s=ZERO_S)
    text = write_report([run], tmp_path / "out").read_text()
    for word in ("J/token", "throttled in rounds of these rows: 1 of greedy", "1 gaps, 6.1 s in total", "51.0 °C"):
        assert word in text
    assert {"1-run-energy.png", "1-run-power.png"} <= {path.name for path in (tmp_path / "out" / "plots").iterdir()}


# ---------------------------------------------------------------- a sensor


def test_a_sensor_is_read_for_a_moment(tmp_path: Path) -> None:
    found = read_power(meter(tmp_path / "meter.csv"), 0.3)
    assert found["total_w"] == pytest.approx(4.0)
    assert found["rails"] == pytest.approx({"VDD_IN": 4.0})
    assert found["samples"] >= 1
    refuse(lambda: read_power(meter(tmp_path / "meter.csv"), 0.0), BadInput, "0.05..3600 s")
    refuse(lambda: read_power("none", 1.0), BadInput, "no power sensor")
