"""Reports of sweeps and studies: Table I, intervals, every figure, unfinished sweeps, runs beside each other."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.config import DemoConfig, save
from testbed.errors import BadInput
from testbed.experiments import report_tables, results
from testbed.experiments.report import write_report, write_shown
from testbed.experiments.report_data import load_shown
from testbed.experiments.report_intervals import with_intervals
from testbed.experiments.report_sweep import load_all
from testbed.experiments.results import PARTS
from testbed.experiments.sweep_points import SweepConfig, points
from tests.support.refusals import refuse

WINDOWS, RATES, SERIES = (4, 8, 16), (20.0, 500.0), ("SD greedy", "50 % & more")
PROMPTS = 12
CONFIG = {"run": {"dataset": "bundled:test", "prompts": PROMPTS}, "name": "small"}


def requests_of(series: int, window: int, rate: float) -> list[dict[str, Any]]:
    """The second series takes exactly half of the first one's time on every prompt."""
    dice = np.random.default_rng(window)
    latencies = dice.uniform(1, 3, PROMPTS) * (1 + 20 / rate) / (1 + series)
    return [
        {"method": "fh", "request": i, "prompt_len": 9 + i, "tokens": 24, "rounds": 24 // window + i, "latency_s": s}
        for i, s in enumerate(latencies)
    ]


def make_sweep(out: Path, level: bool = False) -> Path:
    rows = []
    for number, series in enumerate(SERIES):
        for window in WINDOWS:
            for rate in RATES:
                key = f"{number}{window}{rate:g}"
                (out / "points" / key).mkdir(parents=True)
                table = requests_of(number, window, rate)
                results.write_parquet(out / "points" / key / "requests.parquet", table)
                csi = {"csi_time_s": 1.0, "csi_uplink_mbps": rate, "protocol": "fh"}
                rounds = [
                    {"method": "fh", "request": 0, "drafted": window, "accepted": a, "committed": a + 1, **csi}
                    for a in range(window + 1)
                ]
                results.write_parquet(out / "points" / key / "rounds.parquet", rounds)
                latency_s = float(np.mean([row["latency_s"] for row in table]))
                row = {
                    "method": "fh", "series": series, "window": window, "threshold": None, "requests": PROMPTS,
                    "uplink_mbps": rate, "downlink_mbps": rate, "rtt_ms": 50.0, "per": 0.0, "accuracy": 0.75,
                    "aal": 3.5, "rounds": 7.0, "latency_s": latency_s, "throughput_tps": 24 / latency_s, "point": key,
                    **dict.fromkeys(PARTS, latency_s / len(PARTS)),
                }  # fmt: skip
                rows.append(row | ({"level": window} if level else {}))
    results.write_summary(out, results.summary(CONFIG, 0, {}, rows))
    return out


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sweep(tmp_path_factory.mktemp("runs") / "small")


def test_intervals_are_paired_with_the_first_row_of_a_window_and_link(sweep: Path) -> None:
    shown = load_shown([sweep])[0]
    found = with_intervals(shown.parts, shown.config["dataset"])
    for part, intervals in zip(shown.parts, found, strict=True):
        requests = requests_of(SERIES.index(part.name), part.row["window"], part.row["uplink_mbps"])
        assert intervals["latency_s"].value == pytest.approx(np.mean([r["latency_s"] for r in requests]))
        assert intervals["latency_s"].low < intervals["latency_s"].value < intervals["latency_s"].high
        total = sum(r["tokens"] for r in requests) / sum(r["rounds"] for r in requests)
        assert intervals["aal"].value == pytest.approx(total)
        if part.name == SERIES[0]:
            assert "speedup" not in intervals
        else:
            assert tuple(intervals["speedup"]) == pytest.approx((2, 2, 2))  # twice as fast on every prompt


def test_table_one_has_windows_and_methods_down_and_links_across(sweep: Path) -> None:
    shown = load_shown([sweep])[0]
    table = report_tables.pivot(shown.rows, [part.name for part in shown.parts])
    assert table is not None
    rows = list(csv.reader(io.StringIO(report_tables.pivot_csv(table))))
    assert len(rows) == 1 + len(WINDOWS) * len(SERIES)
    assert rows[0][:3] == ["window", "method", "latency_s @ 500 Mbit/s"]
    first = next(
        row for row in shown.rows if (row["window"], row["uplink_mbps"], row["series"]) == (4, 500.0, SERIES[0])
    )
    assert rows[1][:4] == ["4", "SD greedy", f"{first['latency_s']:.3f}", "3.500"]
    latex = report_tables.pivot_latex(table)
    body = [line for line in latex.splitlines() if re.match(r"(draft=\d+ )?& |draft=", line.strip())]
    columns = 2 + 5 * len(RATES)
    assert all(line.count(" & ") == columns - 1 for line in body if "\\\\" in line and "multicolumn" not in line)
    assert r"50 \% \& more" in latex
    assert latex.count(r"\midrule") == len(WINDOWS)
    assert latex.startswith(rf"\begin{{tabular}}{{ll{'r' * 10}}}")


def test_every_figure_and_table_of_a_sweep_is_written(sweep: Path, tmp_path: Path) -> None:
    page = write_report([sweep], tmp_path, ("png", "svg", "pdf"))
    names = {"latency", "latency-window", "aal-curve", "rounds-curve", "latency-curve", "accuracy-curve", "acceptance",
             "committed"}  # fmt: skip
    plots = {path.name for path in (tmp_path / "plots").iterdir()}
    assert plots == {f"1-small-{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")}
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        "1-small-rows.csv", "1-small-table1.csv", "1-small-table1.tex",
    }  # fmt: skip
    text = page.read_text()
    assert text.count("<figure>") == len(names)
    assert "50 % &amp; more" in text
    assert page.stat().st_size < 5_000_000
    refuse(lambda: write_report([sweep], tmp_path, ("gif",)), BadInput, "known: png, svg, pdf")


def test_the_csv_of_all_rows_has_each_bound_once(sweep: Path, tmp_path: Path) -> None:
    write_report([sweep], tmp_path)
    with (tmp_path / "tables" / "1-small-rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(WINDOWS) * len(RATES) * len(SERIES)
    assert len(rows[0]) == len(set(rows[0]))
    for row in rows:
        assert float(row["latency_s_low"]) < float(row["latency_s"]) < float(row["latency_s_high"])


def test_thresholds_make_figure_three(tmp_path: Path) -> None:
    write_report([make_sweep(tmp_path / "small", level=True)], tmp_path / "out")
    plots = {path.stem for path in (tmp_path / "out" / "plots").iterdir()}
    assert {"1-small-accuracy-threshold", "1-small-aal-threshold", "1-small-latency-threshold"} <= plots


def test_runs_are_held_against_the_first(sweep: Path, tmp_path: Path) -> None:
    other = make_sweep(tmp_path / "other")
    text = write_report([sweep, other], tmp_path / "out").read_text()
    assert "Held against small" in text
    assert text.count("12 paired") == len(WINDOWS) * len(RATES) * len(SERIES)
    assert "+0.0%<br><small>+0.0% … +0.0%</small>" in text


def test_an_unfinished_sweep_is_reported_with_what_is_missing(tmp_path: Path) -> None:
    run = DemoConfig(channel="kind=virtual,profile=wisv,rtt_ms=50", methods=("greedy",), prompts=2)
    config = SweepConfig(run=run, grid={"window": [4, 8, 16]})
    (tmp_path / "points").mkdir()
    save(config, tmp_path / "config.yaml")
    refuse(lambda: load_all([tmp_path]), BadInput, "none of the 3 points of this sweep has run yet")
    row = {"method": "greedy", "requests": 2, "latency_s": 1.0, "aal": 2.0, "rounds": 3.0, "accuracy": None,
           "threshold": None, "lossless": True, **dict.fromkeys(PARTS, 0.1)}  # fmt: skip
    for point in points(config)[:2]:
        (tmp_path / "points" / point.key).mkdir()
        document = results.summary({}, 0, {}, [{**row, "window": point.config.window}])
        results.write_summary(tmp_path / "points" / point.key, document)
    shown = load_all([tmp_path])
    assert (len(shown[0].parts), shown[0].missing) == (2, 1)
    assert "Not finished: 1 points of this sweep" in write_shown(shown, tmp_path / "out").read_text()


# ---------------------------------------------------------------- studies of load


def drawn(directory: Path, out: Path) -> Iterator[str]:
    write_report([directory], out)
    yield from sorted(path.stem.removeprefix("1-study-") for path in (out / "plots").iterdir())


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_a_study_of_capacity_has_its_curves_and_its_plane(tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    rows = [
        {"system": system, "class_tps": speed, "capacity": base // speed, "paper": base // speed + 3}
        for system, base in (("wisp", 700), ("sled", 300))
        for speed in (2, 4, 6, 8)
    ]
    results.write_summary(study, results.summary({"systems": ["wisp"], "epsilon": 0.05}, 0, {}, rows))
    dice = np.random.default_rng(1)
    rounds = [
        {"queue_s": q, "verify_s": v, "cause": "queue" if q > 0.4 else "compute" if v > 0.3 else ""}
        for q, v in dice.exponential(0.2, (300, 2))
    ]
    write_csv(study / "fig8.csv", rounds)
    over = [
        {"system": system, "ues": n, "class_tps": speed, "violation": min(1, (n / most) ** 6)}
        for system, most in (("wisp", 180), ("sled", 90)) for n in range(20, 200, 20) for speed in (2, 8)
    ]  # fmt: skip
    write_csv(study / "fig7.csv", over)
    assert list(drawn(study, tmp_path / "out")) == ["capacity", "plane", "violations"]


def test_a_measured_load_collapses(tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    dice, loads = np.random.default_rng(2), np.linspace(0.5, 9, 15).tolist()
    rows = [{"rps": rps, "latency_s": 0.8 / (1 - rps * 0.09) * dice.normal(1, 0.01)} for rps in loads]
    write_csv(study / "points.csv", rows)
    results.write_summary(study, results.summary({}, 0, {}, rows))
    assert list(drawn(study, tmp_path / "out")) == ["collapse", "load"]
