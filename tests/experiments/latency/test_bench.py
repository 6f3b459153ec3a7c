"""`testbed bench`: metrics by hand, and a real base station under load."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.cli.runs.bench import report_lines
from testbed.config import RunConfig, ServeConfig
from testbed.errors import BadInput, TestbedError
from testbed.experiments.latency.bench import arrivals, limits_of, row_of, run_bench
from testbed.experiments.latency.bench_config import BenchConfig
from testbed.experiments.latency.load_config import LoadConfig
from testbed.experiments.latency.station import with_station, workload_of
from testbed.experiments.plots.bench import bench_figure
from testbed.experiments.results.metrics import RequestTimes, times_of
from testbed.experiments.runs import processes
from testbed.experiments.runs.processes import base_station
from testbed.models.bundle import bundled
from testbed.ue.client import Client
from testbed.ue.records import RequestRecord, RoundRecord


def record(ends_s: list[float], committed: list[int]) -> RequestRecord:
    rounds = [
        RoundRecord(i, "greedy", 5, 4, 3, count, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9, 9, 0.0, end_s=end_s)
        for i, (end_s, count) in enumerate(zip(ends_s, committed, strict=True))
    ]
    return RequestRecord(5, list(range(sum(committed))), "length", 0.0, 9, 9, rounds)


def test_every_rate_has_arrivals_of_its_own() -> None:
    """Not one path, scaled: the gaps of two rates are uncorrelated. Another seed draws others."""
    config = BenchConfig(requests=2000)
    slow, fast = (np.diff(arrivals(config, rate)) for rate in (1.0, 4.0))
    assert abs(np.corrcoef(slow, fast)[0, 1]) < 0.1
    assert slow.mean() == pytest.approx(1.0, rel=0.1) and fast.mean() == pytest.approx(0.25, rel=0.1)
    assert arrivals(config, 1.0) == arrivals(config, 1.0) != arrivals(BenchConfig(requests=2000, seed=1), 1.0)
    assert arrivals(config, math.inf) == [0.0] * 2000


@given(st.lists(st.tuples(st.floats(0.001, 5.0), st.integers(1, 9)), min_size=1, max_size=8), st.floats(0, 3))
def test_times_run_from_the_arrival(rounds: list[tuple[float, int]], waited_s: float) -> None:
    took_s, committed = (list(part) for part in zip(*rounds, strict=True))
    ends_s = list(itertools.accumulate(took_s, initial=100.0))[1:]
    found = times_of(record(ends_s, committed), waited_s + sum(took_s))
    assert found.ttft_s == pytest.approx(waited_s + took_s[0])
    assert found.gaps_s == pytest.approx(took_s[1:]) and found.tokens == sum(committed)
    if found.tokens > 1:
        assert found.tpot_s == pytest.approx(sum(took_s[1:]) / (found.tokens - 1))
    else:
        assert found.tpot_s is None


def test_a_row_by_hand() -> None:
    served = [RequestTimes(0.1, 1.1, 11, [0.5, 0.5]), RequestTimes(0.3, 0.3, 1, [])]
    row = row_of("greedy", 2.0, 8, served, [5, 7], 4.0, {"ttft": 200.0, "tpot": 100.0})
    assert row["goodput_rps"] == 0.25 and row["request_throughput_rps"] == 0.5  # the second one began too late
    assert (row["output_throughput_tps"], row["total_throughput_tps"]) == (3.0, 6.0)
    assert row["mean_ttft_ms"] == pytest.approx(200.0) and row["mean_tpot_ms"] == pytest.approx(100.0)
    assert row["mean_itl_ms"] == row["median_itl_ms"] == pytest.approx(500.0)
    lines = "\n".join(report_lines(row))
    for text in ("Serving Benchmark Result", "Mean TTFT (ms):                             200.00", "Median ITL (ms):"):
        assert text in lines
    assert {len(line) for line in lines.splitlines()} == {50}
    assert row_of("greedy", math.inf, 8, served, [5, 7], 4.0, {})["goodput_rps"] is None


@pytest.mark.parametrize(("requests", "shown"), [(199, set()), (200, {"p95"}), (999, {"p95"}), (1000, {"p95", "p99"})])
def test_percentiles_need_enough_requests(requests: int, shown: set[str]) -> None:
    served = [RequestTimes(i / 1000, 1 + i / 1000, 11, [0.1] * 10) for i in range(requests)]
    row = row_of("greedy", 2.0, 8, served, [5] * requests, 4.0, {})
    lines, drawn = "\n".join(report_lines(row)), bench_figure([row]).caption
    for word, share in (("p95", 95), ("p99", 99)):
        expected = np.percentile(np.arange(requests), share)
        assert row[f"{word}_ttft_ms"] == (pytest.approx(expected) if word in shown else None)
        assert (f"{word.upper()} TTFT (ms):" in lines) == (word in shown)
        assert (f"{word} as dotted lines" in drawn) == (word == max(shown, default=None))


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "ttft:-1", "speed:3"])
def test_limits_that_are_none(text: str) -> None:
    with pytest.raises(BadInput, match="NAME:MS"):
        limits_of([text])


@pytest.mark.parametrize("given", [{"engine": "llama"}, {"dtype": "bfloat16"}])
def test_what_another_base_station_computes_with_is_not_stated(given: dict[str, str], tmp_path: Path) -> None:
    """The summary gave it as that of the measurement."""
    config = BenchConfig(bs="tcp://127.0.0.1:1", **given)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="has no effect with --bs"):
        run_bench(config, tmp_path / "bench", lambda _: None)


@pytest.mark.slow
def test_a_real_base_station_under_load(tmp_path: Path) -> None:
    serve = ServeConfig(
        engine="transformers", model=str(bundled().require("target")), bind="tcp://127.0.0.1:*", threads=1
    )
    with base_station(serve) as ready:
        config = BenchConfig(
            bs=ready["bind"], rates=(4.0, math.inf), requests=6, max_tokens=12, goodput=("e2el:60000",), threads=1,
            max_concurrency=3,
        )  # fmt: skip
        document = run_bench(config, tmp_path / "bench", lambda _: None)
    rows: list[dict[str, Any]] = document["rows"]
    assert [(row["method"], row["rate_rps"]) for row in rows] == [
        ("greedy", 4.0), ("greedy", None), ("target-only", 4.0), ("target-only", None),
    ]  # fmt: skip
    for row in rows:
        assert row["requests"] == 6 and row["goodput_rps"] == pytest.approx(row["request_throughput_rps"])
        assert 0 < row["mean_ttft_ms"] <= row["mean_e2el_ms"] and row["output_tokens"] <= 72
    assert rows[0]["input_tokens"] == rows[2]["input_tokens"] and rows[0]["output_tokens"] == rows[2]["output_tokens"]
    kept = json.loads((tmp_path / "bench" / "summary.json").read_text())
    assert kept["kind"] == "bench" and kept["config"]["engine"] is None is kept["config"]["dtype"]
    assert {path.name for path in (tmp_path / "bench" / "plots").iterdir()} == {"1-bench.png", "1-bench.svg"}


@pytest.mark.slow
def test_a_base_station_that_is_killed_ends_the_measurement(tmp_path: Path) -> None:
    """UEs waited for their timeout; `latency measure` and `ramp`, with one of ten minutes, seemed to hang."""

    def say(line: str) -> None:
        if "requests at" in line:
            processes._serving_now[-1][1].kill()

    config = BenchConfig(engine="llama", rates=(math.inf,), requests=6, timeout_s=250.0)
    with pytest.raises(TestbedError, match="the base station was ended during the run by SIGKILL"):
        run_bench(config, tmp_path / "bench", say)


@pytest.mark.slow
def test_a_load_whose_base_station_is_killed_ends(tmp_path: Path) -> None:
    load = LoadConfig(engine="llama", model=str(bundled().require("drafter")))
    work = workload_of(RunConfig(limit=1))

    async def wait(clients: Sequence[Client]) -> None:
        processes._serving_now[-1][1].kill()
        await asyncio.sleep(250)

    with pytest.raises(TestbedError, match="the base station was ended during the run by SIGKILL"):
        with_station(load, work, wait, tmp_path / "metrics.jsonl")
