"""Selection of rows for a report's figures, on hand-made rows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from testbed.assets.bundled_files import folder
from testbed.experiments.plots import capacity as capacity_plots
from testbed.experiments.report import bench, capacity, figures, rounds
from testbed.experiments.report.data import RowSource, Shown, load_shown
from testbed.experiments.report.facts import facts_html
from testbed.experiments.report.rows_table import rows_html
from testbed.experiments.report.tables import pivot, pivot_html, text_of
from testbed.experiments.results import directory as results
from tests.support.reports import Page, make_bench, make_sweep

TRACES = folder("traces")


def part(folder: Path, series: str, threshold: float | None, rate: float, rtt_ms: float, accepted: int) -> RowSource:
    """A row of a sweep whose rounds all accept the same number of 8 tokens."""
    folder = folder / f"{series}-{threshold}-{rate}-{rtt_ms}"
    folder.mkdir()
    kept = {"method": "fh", "drafted": 8, "accepted": accepted, "committed": accepted + 1}
    results.write_parquet(folder / "rounds.parquet", [{"request": i, **kept} for i in range(3)])
    row = {"method": "fh", "series": series, "window": 8, "threshold": threshold, "uplink_mbps": rate, "rtt_ms": rtt_ms}
    return RowSource(row, folder)


def test_rounds_are_those_of_the_poorest_link_and_of_the_middle_threshold(tmp_path: Path) -> None:
    parts = [
        part(tmp_path, "head", level / 16, rate, rtt_ms, level // 2)
        for level in (0, 4, 16)
        for rate in (5.0, 500.0)
        for rtt_ms in (5.0, 50.0)
    ]
    parts.append(part(tmp_path, "rule", 1.0, 5.0, 50.0, 7))
    chosen, where = rounds._chosen(parts)
    found = {one.name: (one.row["threshold"], one.row["uplink_mbps"], one.row["rtt_ms"]) for one in chosen}
    assert found == {"head": (0.25, 5.0, 50.0), "rule": (1.0, 5.0, 50.0)}
    assert where == ", at K = 8 and 5 Mbit/s, RTT 50 ms, θ = 0.25 where it varies"
    drawn = rounds.figures(Shown(tmp_path, "1", {"config": {}}, parts))
    assert [figure.name for figure in drawn] == ["acceptance", "committed"] and where in drawn[0].caption


def test_what_does_not_vary_is_not_said(tmp_path: Path) -> None:
    parts = [part(tmp_path, "head", 0.5, rate, 5.0, 3) for rate in (5.0, 500.0)]
    assert rounds._chosen(parts) == (parts[:1], ", at K = 8 and 5 Mbit/s, RTT 5 ms")
    assert rounds._chosen(parts[1:]) == (parts[1:], "")


@pytest.mark.parametrize(
    ("totals", "highest"),
    [
        ([1.0, 2.0, 3.0], 3.0),
        ([1.0, 1.0, 1.0, 2.0, 4.0], 2.0),  # 4 is four times the usual, and twice the next
        ([1.0, 1.0, 1.0, 2.5, 4.0], 4.0),  # not so much more than the next
        ([1.0, 1.0, 1.0, 100.0], 1.0),
        ([0.0], 0.0),
        ([], 1.0),
    ],
)
def test_a_bar_is_cut_only_where_it_would_dwarf_all_others(totals: list[float], highest: float) -> None:
    assert figures._top(totals) == pytest.approx(1.12 * highest)


def test_goodput_is_drawn_over_the_number_of_ues() -> None:
    rows: list[dict[str, Any]] = [
        {"system": system, "ues": ues, "goodput_tps": 30.0 * ues + seed, "violations": {"1": 0.0}}
        for system in ("fixed", "gain")
        for ues in (2, 4, 8)
        for seed in (0, 1)
    ]
    names = [f.name for f in capacity.figures(Shown(Path("none"), "1", {"config": {}, "rows": rows}, []))]
    assert names == []  # a study's rows are its parts'
    shown = Shown(Path("none"), "1", {"config": {"epsilon": 0.05}}, [RowSource(row, Path("none")) for row in rows])
    assert [figure.name for figure in capacity.figures(shown)] == ["goodput", "violations"]
    (axes,) = capacity_plots.goodput(rows).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {name: [[2.0, 60.5], [4.0, 120.5], [8.0, 240.5]] for name in ("fixed", "gain")}


def test_a_setting_is_named_where_rows_differ_in_it() -> None:
    rows = [{"method": "greedy", "window": 8, "engine": "vllm", "window_rule": rule} for rule in ("fixed", "gain")]
    assert figures.row_names(rows) == ["greedy, rule fixed", "greedy, rule gain"]
    table = rows_html(rows, [{}, {}])
    assert "<th>window rule</th>" in table and "<td>gain</td>" in table and "engine" not in table


def test_rates_are_named_once_with_their_unit_and_series_by_name() -> None:
    rows = [{"method": "fh", "window": 8, "uplink_mbps": rate, "downlink_mbps": down}
            for rate, down in ((5.0, 5.0), (20.0, 20.0))]  # fmt: skip
    assert figures.row_names(rows) == ["fh, 5 Mbit/s", "fh, 20 Mbit/s"]
    rows[0]["downlink_mbps"] = 7.0
    assert figures.row_names(rows)[0] == "fh, up 5 Mbit/s, down 7 Mbit/s"
    series = [{"name": "WISV, strict", "protocol": "fh", "threshold": 0}, {"name": "greedy", "protocol": "greedy"}]
    page = facts_html({"config": {"run": {}, "series": series}})
    assert "WISV, strict (protocol fh, threshold 0); greedy (protocol greedy)" in page
    assert (text_of(38912.75), text_of(0.123456), text_of(1e12)) == ("38913", "0.1235", "1e+12")


def test_bars_name_only_parts_that_took_time() -> None:
    rows = [{"method": name, "draft_s": 0.1, "link_s": 0.2, "judge_s": 0.0, "queue_s": None} for name in ("fh", "sh")]
    (drawn,) = figures._latency(rows).legends
    assert [text.get_text() for text in drawn.get_texts()] == ["draft", "link"]


def test_the_replayed_trace_is_drawn_behind_what_was_observed(tmp_path: Path) -> None:
    channel = "kind=trace,file=drive,via=virtual,profile=wisv"
    row = {"method": "greedy", "requests": 1}
    results.write_summary(tmp_path, results.summary({"channel": channel}, 0, {}, [row]))
    with (TRACES / "drive.csv").open() as file:
        samples = list(csv.DictReader(line for line in file if not line.startswith("#")))
    kept = {"method": "greedy", "request": 0, "drafted": 8, "accepted": 1, "committed": 2, "protocol": "greedy",
            "csi_downlink_mbps": 30.0, "csi_rtt_ms": 35.0}  # fmt: skip
    seen = [{**kept, "csi_time_s": 10.0 + 0.1 * i, "csi_uplink_mbps": 20.0 + i, "link_s": 0.04} for i in range(50)]
    results.write_parquet(tmp_path / "rounds.parquet", seen)
    found = rounds.figures(Shown(tmp_path, "1", {"config": {}}, [RowSource(row, tmp_path)]))
    rates, times, _ = {one.name: one for one in found}["link"].draw().axes
    up = next(line for line in rates.lines if line.get_label() == "trace")
    at_s = [float(one["t_s"]) for one in samples if 10.0 <= float(one["t_s"]) < 14.9]
    assert up.get_xdata().tolist() == pytest.approx([t - 10.0 for t in at_s])
    assert up.get_ydata().tolist() == [float(s["uplink_mbps"]) for s in samples if float(s["t_s"]) in at_s]
    dots = next(line for line in times.lines if line.get_label() == "time on the link")
    assert set(dots.get_ydata()) == {40.0}


@pytest.mark.parametrize(
    "channel", ["kind=none", "kind=trace,file=drive,via=proxy", "kind=trace,file=gone,via=virtual"]
)
def test_a_trace_without_a_known_start_or_file_is_not_drawn(channel: str, tmp_path: Path) -> None:
    results.write_summary(tmp_path, results.summary({"channel": channel}, 0, {}, []))
    assert rounds._replayed(RowSource({"method": "greedy"}, tmp_path)) is None


def test_table_one_has_a_group_of_rows_for_each_window(tmp_path: Path) -> None:
    (shown,) = load_shown([make_sweep(tmp_path / "sweep")])
    table = pivot(shown.rows, [one.name for one in shown.parts])
    assert table is not None
    tags = Page(pivot_html(table)).tags
    assert tags.count("tbody") == len(table.windows)
    assert tags.count("tr") == 2 + len(table.windows) * len(table.names)
    assert tags.count("td") == len(table.windows) * len(table.names) * (1 + 5 * len(table.links))


def test_a_bench_is_drawn_over_its_rates_and_only_over_several(tmp_path: Path) -> None:
    (shown,) = load_shown([make_bench(tmp_path / "bench")])
    (figure,) = bench.figures(shown)
    axes = figure.draw().axes
    assert axes[0].get_xticks().tolist() == [1.0, 4.0]
    assert {line.get_label() for line in axes[0].lines} == {
        f"{m}{p}" for m in ("greedy", "target-only") for p in ("", ", p99")
    }
    shown.parts = [part for part in shown.parts if part.row["rate_rps"] == 1.0]
    assert bench.figures(shown) == []


def test_accuracy_is_drawn_within_its_range(tmp_path: Path) -> None:
    (shown,) = load_shown([make_sweep(tmp_path / "sweep")])
    parts = [RowSource({**one.row, "accuracy": 0.0}, one.directory) for one in shown.parts]
    drawn = figures._curves(parts, [{}] * len(parts), "accuracy", "accuracy", "window", "K")
    assert all(one.get_ylim()[0] == 0.0 and one.get_ylim()[1] <= 1.02 for one in drawn.axes)


def test_the_link_model_of_a_field_plan_is_not_taken_for_the_target() -> None:
    for target, told in ((None, "bundled pair"), ("./large", "target ./large, drafter bundled")):
        plan = {"model": {"anchors": [[2.0, 498.0]]}, "target": target, "run": {"methods": ["fh"]}}
        page = facts_html({"config": plan})
        assert f"<dt>models</dt><dd>{told}" in page and "{" not in page
