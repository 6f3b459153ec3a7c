"""Reports of sweeps and studies: Table I, intervals, every figure, unfinished sweeps, comparison of runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from testbed import files
from testbed.config import DemoConfig, resolved, save
from testbed.errors import BadInput
from testbed.experiments.report import tables as report_tables
from testbed.experiments.report.data import load_shown
from testbed.experiments.report.intervals import with_intervals
from testbed.experiments.report.page import write_report, write_shown
from testbed.experiments.results import directory as results
from testbed.experiments.results.rows import PARTS
from testbed.experiments.sweep.points import SweepConfig, points
from testbed.experiments.sweep.report import load_all
from tests.support.refusals import refuse
from tests.support.reports import (
    RATES,
    SERIES,
    WINDOWS,
    make_capacity,
    make_load,
    make_sweep,
    requests_of,
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sweep(tmp_path_factory.mktemp("runs") / "small")


def test_intervals_are_paired_with_the_first_row_of_a_window_and_link(sweep: Path) -> None:
    shown = load_shown([sweep])[0]
    found = with_intervals(shown.parts, shown.config)
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


def test_rows_are_compared_with_a_chosen_series(sweep: Path, tmp_path: Path) -> None:
    """Half as fast as the second series on every prompt, at each window and link."""
    shown = load_shown([sweep])[0]
    found = with_intervals(shown.parts, shown.config, SERIES[1])
    for part, intervals in zip(shown.parts, found, strict=True):
        if part.name == SERIES[1]:
            assert "speedup" not in intervals
        elif part.name == SERIES[0]:
            assert tuple(intervals["speedup"]) == pytest.approx((0.5, 0.5, 0.5))
    refuse(lambda: write_shown([shown], tmp_path, against="nobody"), BadInput, "no rows are named 'nobody'")


def test_series_over_a_trace_are_compared_whatever_they_measured(sweep: Path) -> None:
    """One estimates 19 Mbit/s, the other nothing: the trace is the same. Before, no row of a trace had a baseline."""
    shown = load_shown([sweep])[0]
    rate = shown.parts[0].row["uplink_mbps"]
    parts = [part for part in shown.parts if part.row["uplink_mbps"] == rate]
    for part in parts:
        part.row |= {"file": "walk", "uplink_mbps": 19.0 if part.name == SERIES[0] else None}
    found = with_intervals(parts, shown.config)
    speedups = [intervals["speedup"].value for intervals in found if "speedup" in intervals]
    assert speedups == pytest.approx([2] * (len(parts) // len(SERIES) * (len(SERIES) - 1)))


def test_table_one_has_windows_and_methods_down_and_links_across(sweep: Path) -> None:
    shown = load_shown([sweep])[0]
    table = report_tables.pivot(shown.rows, [part.name for part in shown.parts])
    assert table is not None
    rows = list(csv.reader(io.StringIO(report_tables.pivot_csv(table))))
    assert len(rows) == 1 + len(WINDOWS) * len(SERIES)
    assert rows[0][:3] == ["window", "method", "latency_s @ 20 Mbit/s"]
    first = next(
        row for row in shown.rows if (row["window"], row["uplink_mbps"], row["series"]) == (4, 20.0, SERIES[0])
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
    assert "Compared with small" in text
    assert text.count("12 paired") == len(WINDOWS) * len(RATES) * len(SERIES)
    assert "+0.0%<br><small>+0.0% … +0.0%</small>" in text


def test_an_unfinished_run_is_refused_with_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"")
    refuse(lambda: load_all([tmp_path]), BadInput, "holds an unfinished run", "--resume")
    (tmp_path / "journal").rename(tmp_path / "log.jsonl")
    refuse(lambda: load_all([tmp_path]), BadInput, "unfinished field run", f"testbed field report {tmp_path}")


def test_an_unfinished_sweep_is_reported_with_what_is_missing(tmp_path: Path) -> None:
    run = DemoConfig(channel="kind=virtual,profile=wisv,rtt_ms=50", methods=("greedy",), prompts=2)
    config = SweepConfig(run=run, grid={"window": [4, 8, 16]})
    save(config, tmp_path / "config.yaml")
    refuse(lambda: load_all([tmp_path]), BadInput, "none of the 3 points of this sweep is finished yet")
    (tmp_path / "points").mkdir()
    refuse(lambda: load_all([tmp_path]), BadInput, "none of the 3 points of this sweep is finished yet")
    row = {"method": "greedy", "requests": 2, "latency_s": 1.0, "aal": 2.0, "rounds": 3.0, "accuracy": None,
           "threshold": None, "lossless": True, **dict.fromkeys(PARTS, 0.1)}  # fmt: skip
    for point in points(config)[:2]:
        (tmp_path / "points" / point.key).mkdir()
        document = results.summary(resolved(point.config), 0, {}, [{**row, "window": point.config.window}])
        results.write_summary(tmp_path / "points" / point.key, document)
    shown = load_all([tmp_path])
    assert (len(shown[0].parts), shown[0].missing) == (2, 1)
    assert "Not finished: 1 points of this sweep" in write_shown(shown, tmp_path / "out").read_text()


def test_an_unfinished_sweep_of_somebody_else_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """150 bytes kept a report busy for hours, or filled the memory with a data set that never ends."""
    monkeypatch.setattr("testbed.experiments.runs.demo.load_dataset", lambda *_: pytest.fail("reads the data set"))
    run = DemoConfig(channel="kind=virtual,profile=wisv", methods=("greedy",), dataset="/dev/zero", prompts=10**8)
    save(SweepConfig(run=run), tmp_path / "config.yaml")
    refuse(lambda: load_all([tmp_path]), BadInput, "none of the 1 points of this sweep is finished yet")
    save(SweepConfig(run=run, repeats=10_001), tmp_path / "config.yaml")
    refuse(lambda: load_all([tmp_path]), BadInput, "at most 10000 points")


@pytest.mark.parametrize("name", ["summary.json", "series.json", "points.csv", "fig7.csv", "fig8.csv"])
def test_files_of_results_are_bounded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a device filled the memory."""
    document = results.summary({}, 0, {}, []) | {"kind": "cell" if name == "series.json" else "latency-load"}
    results.write_summary(tmp_path, document)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).write_text(" " * 2000 + "{}")
    monkeypatch.setattr(files, "MOST_BYTES", 1999)
    refuse(lambda: write_report([tmp_path], tmp_path / "out"), BadInput, f"{tmp_path}", "larger than 1999 bytes")


# ---------------------------------------------------------------- studies of load


def drawn(directory: Path, out: Path) -> Iterator[str]:
    write_report([directory], out)
    yield from sorted(path.stem.removeprefix("1-study-") for path in (out / "plots").iterdir())


def test_a_study_of_capacity_has_its_curves_and_its_plane(tmp_path: Path) -> None:
    assert list(drawn(make_capacity(tmp_path / "study"), tmp_path / "out")) == ["capacity", "plane", "violations"]


def test_a_measured_load_collapses(tmp_path: Path) -> None:
    assert list(drawn(make_load(tmp_path / "study"), tmp_path / "out")) == ["collapse", "latency"]
