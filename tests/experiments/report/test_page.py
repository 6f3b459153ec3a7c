"""Reports: generated from a run's files alone, as one self-contained HTML file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec
import pytest

from testbed.channel.radio.config import RadioConfig
from testbed.cli.main import main
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.files import carry_out
from testbed.experiments.report import data
from testbed.experiments.report import page as page_module
from testbed.experiments.report.figures import row_names
from testbed.experiments.report.page import write_report
from testbed.experiments.results import directory as results
from testbed.experiments.results import files
from testbed.experiments.results.files import read_requests
from tests.support.reports import Page, make_capacity, make_field, make_sweep, row, save_run

PNG = b"\x89PNG\r\n\x1a\n"


def test_one_file_holds_the_table_and_the_plots(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run-1", [row("target-only", aal=1.0, lossless=None), row("fh", lossless=False)])
    path = write_report([run], tmp_path / "out")
    assert path == tmp_path / "out" / "report.html"
    text = path.read_text()
    page = Page(text)
    assert not re.search(r"https?:|url\(|@import|<script", text)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert page.links
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert len(page.images) == 3
    assert all(image.startswith(PNG) for image in page.images)
    plots = {p.name: p.read_bytes() for p in (tmp_path / "out" / "plots").iterdir()}
    assert set(plots) == {f"1-run-1-{name}.png" for name in ("latency", "acceptance", "committed")}
    assert sorted(plots.values()) == sorted(page.images)
    assert {p.name for p in (tmp_path / "out" / "tables").iterdir()} == {"1-run-1-rows.csv"}
    results, every = page.cells[: 2 * 10], page.cells[2 * 10 :]  # the open table, and that of all columns
    assert results[:10] == ["target-only", "3", "0.4321", "210", "1", "0.8125", "0.6667", "–", "1234", "456"]
    assert results[10] == "fh" and results[17] == "no"
    width = len(every) // 2
    first, second = every[:width], every[width:]
    assert first[:5] == ["target-only", "8", "3", "0.6667", "1"]  # columns that no row fills are left out
    assert "0.4321" in second and second[0] == "fh" and "no" in second
    for fact in ("commit", "A &amp; B, 2 cores", "bs 11, ue 12", "&lt;script&gt;alert(1)", "run-1"):
        assert fact in text


def test_groups_of_cells_are_compared_by_name(tmp_path: Path) -> None:
    """A report of two cells failed: their groups of bytes were taken for a decoding method's."""
    ues = (UeGroup(name="fh", protocol="fh", class_tps=2.0), UeGroup(name="bytes", traffic="bytes"))
    for name, groups in (("one", ues), ("two", (*ues, UeGroup(name="new")))):
        cell = CellConfig(seconds=12.0, radio=RadioConfig(bandwidth_hz=5e6), ues=groups)
        carry_out(msgspec.structs.replace(cell, seed=len(groups)), real=False, out=tmp_path / name)
    text = write_report([tmp_path / "one", tmp_path / "two"], tmp_path / "out").read_text()
    table = text.split("Compared with one")[1].split("</table>")[0]
    lines = [re.findall("<td>(.*?)</td>", line) for line in table.split("<tr>")[2:]]
    assert [line[:3] for line in lines] == [["two", "fh", "1, 1"], ["two", "bytes", "1, 1"]]
    first, second = (json.loads((tmp_path / name / "cell.json").read_bytes())["rows"] for name in ("one", "two"))
    assert lines[0][3] == f"{second[0]['goodput_tps'] / first[0]['goodput_tps'] - 1:+.1%}" and lines[1][3] == "–"
    mixed = [tmp_path / "one", save_run(tmp_path / "run", [row("fh")])]
    assert "Compared" not in write_report(mixed, tmp_path / "mixed").read_text()


def test_a_field_run_shows_its_visits_and_what_to_know_of_it(tmp_path: Path) -> None:
    text = write_report([make_field(tmp_path / "hall")], tmp_path / "out").read_text()
    for words in (
        "Not finished: 3 runs are left.", "no virtual runs: there is no target", "7 of sh at far",
        "modelled link: within 1.1%", "<td>45.25</td>", "<td>-48</td>", "<td>250.000 ± 0.500</td>",
        "changed: RTT 30 ms, before 9 ms; rain &amp; &lt;b&gt;wind", "somebody walked through",
    ):  # fmt: skip
        assert words in text
    assert len(Page(text).images) == 3
    assert "Visits" not in write_report([save_run(tmp_path / "run", [row("fh")])], tmp_path / "other").read_text()


def test_a_report_runs_no_code_that_a_directory_names(tmp_path: Path) -> None:
    code, mark = tmp_path / "scorer.py", tmp_path / "ran"
    code.write_text(f"open({str(mark)!r}, 'w').close()\n\ndef answer(text):\n    return text\n")
    sweep = make_sweep(tmp_path / "sweep")
    document = results.read_summary(sweep)
    document["config"]["run"]["scorer"] = f"{code}:answer"
    results.write_summary(sweep, document)
    write_report([sweep, make_sweep(tmp_path / "other")], tmp_path / "out")
    assert not mark.exists()


def test_names_and_values_of_a_directory_are_shown_as_text(tmp_path: Path) -> None:
    tag = "<b id=planted>"
    run, study = save_run(tmp_path / "run", [row("fh", **{tag: tag})]), make_capacity(tmp_path / "study")
    for directory in (run, study):
        document = results.read_summary(directory)
        document["config"] |= {tag: {tag: tag}, "model": tag}
        document["rows"] = [{**one, tag: tag} for one in document["rows"]]
        results.write_summary(directory, document)
    text = write_report([run, study], tmp_path / "out").read_text()
    assert tag not in text and "&lt;b id=planted&gt;" in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize("harm", [{"rows": [5]}, {"visits": 0.5}, {"config": 3}, {"host": "x"}])
def test_results_that_make_no_sense_are_refused_in_one_line(
    harm: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    field = make_field(tmp_path / "hall")
    results.write_summary(field, {**results.read_summary(field), **harm})
    assert main(["report", str(field), "--out", str(tmp_path / "out"), "--formats", "png"]) == 2
    said = capsys.readouterr().err
    assert ("not results that a report can show" in said or "has no rows" in said) and said.count("\n") == 1


def test_a_report_writes_through_no_link_of_a_directory(tmp_path: Path) -> None:
    run, victim = save_run(tmp_path / "run", [row("fh")]), tmp_path / "victim"
    victim.write_text("precious")
    (run / "plots").mkdir()
    write_report([run], run)
    for path in [path for path in run.rglob("*") if path.is_file() and path.suffix in (".png", ".csv", ".html")]:
        path.unlink()
        path.symlink_to(victim)
        path.with_name(f".{path.name}.{os.getpid()}").symlink_to(victim)
    write_report([run], run)
    assert victim.read_text() == "precious"
    (run / "tables").rename(tmp_path / "elsewhere")
    (run / "tables").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="tables is a link"):
        write_report([run], run)


@pytest.mark.parametrize("column", ["drafted", "accepted", "committed"])
def test_counts_that_no_base_station_takes_are_refused(column: str, tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", [row("fh")])
    results.write_parquet(
        run / "rounds.parquet",
        [{"method": "fh", "request": 0, "drafted": 8, "accepted": 8, "committed": 9, column: 2**40}],
    )
    with pytest.raises(BadInput, match=r"outside 0\.\.32769"):
        write_report([run], tmp_path / "out")


@pytest.mark.parametrize("dataset", ["bundled:test", "/dev/zero", "hf:somebody/data", "pipe"])
def test_a_report_reads_no_data_without_end(dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest number of a request is 2⁴⁰, or the data set never ends, or would be downloaded."""
    read: list[str] = []
    monkeypatch.setattr(data, "load_dataset", lambda name, _: read.append(name))
    os.mkfifo(tmp_path / "pipe")
    number = 2**40 if dataset == "bundled:test" else 0
    known = {"method": "fh", "text": "1", "prompt_len": 1, "tokens": 1, "rounds": 1, "latency_s": 1.0}
    results.write_parquet(tmp_path / "requests.parquet", [{"request": number, **known}])
    named = str(tmp_path / "pipe") if dataset == "pipe" else dataset
    assert data.RowSource({"method": "fh"}, tmp_path).right({"dataset": named}) is None and not read


def test_files_of_too_many_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_ROWS", 3)
    run = save_run(tmp_path / "run", [row("fh")])
    with pytest.raises(BadInput, match="has 4 rows; at most 3 are read"):
        write_report([run], tmp_path / "out")


def test_a_summary_of_brackets_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("[" * 100_000)
    with pytest.raises(BadInput, match=r"cannot read summary\.json"):
        results.read_summary(tmp_path)


def test_several_runs_stand_one_under_another(tmp_path: Path) -> None:
    runs = [save_run(tmp_path / name, [row(method)]) for name, method in (("b", "sh"), ("a", "greedy"))]
    text = write_report(runs, tmp_path).read_text()
    assert re.findall(r"<h2 id=.*?>(.*?)</h2>", text) == ["b", "a"]
    assert text.index("<td>sh") < text.index("<td>greedy")
    assert len(list((tmp_path / "plots").iterdir())) == 6


def test_runs_of_one_name_keep_their_own_plots(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    runs = [save_run(tmp_path / "x" / "run", [row("fh")]), save_run(tmp_path / "y" / "run", [row("sh")])]
    write_report(runs, tmp_path)
    plots = [p.read_bytes() for p in (tmp_path / "plots").iterdir()]
    assert len(plots) == 6
    assert len(set(plots)) == 6


def test_a_run_without_rounds_or_with_target_only_has_no_acceptance_plot(tmp_path: Path) -> None:
    runs = [save_run(tmp_path / "old", [row("fh")], rounds=False), save_run(tmp_path / "alone", [row("target-only")])]
    write_report(runs, tmp_path)
    assert {p.name for p in (tmp_path / "plots").iterdir()} == {"1-old-latency.png", "2-alone-latency.png"}


def test_a_report_may_be_made_again_over_an_old_one(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", [row("fh")], rounds=False)
    write_report([run], run)
    assert write_report([run], run).exists()


def test_what_is_no_run_directory_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", [row("fh")], rounds=False)
    with pytest.raises(BadInput, match="not a run directory"):
        write_report([run, tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_of_a_sweep_are_told_apart_by_what_differs() -> None:
    rows = [{"method": "fh", "window": k, "uplink_mbps": r, "rtt_ms": 50.0} for k in (8, 16) for r in (20.0, 500.0)]
    assert row_names(rows) == [f"fh, K {k}, up {r} Mbit/s" for k in (8, 16) for r in (20, 500)]
    assert row_names([{"method": "fh", "window": 8}, {"method": "sh", "window": 8}]) == ["fh", "sh"]
    grid = [("greedy", None, 16), ("greedy", None, 32), ("fh", 8, 16), ("fh", 8, 32)]
    rows = [{"method": m, "hidden_bits": b, "window": k} for m, b, k in grid]
    assert row_names(rows) == ["greedy, K 16", "greedy, K 32", "fh, K 16", "fh, K 32"]


def test_rows_of_a_small_sweep_are_unfolded_and_of_a_large_one_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    assert "<details open><summary>All 12 rows" in write_report([sweep], tmp_path / "out").read_text()
    monkeypatch.setattr(page_module, "MOST_ROWS", 11)
    assert "<details><summary>All 12 rows" in write_report([sweep], tmp_path / "out").read_text()


def save_categories(directory: Path, count: int) -> Path:
    """A run with one request in each category."""
    figures = {"requests": 1, "latency_s": 0.5, "tokens": 3.0}
    names = {f"c{i}": figures for i in range(count)}
    rows = [row(method, categories=names, requests=count) for method in ("target-only", "greedy")]
    save_run(directory, rows, rounds=False)
    requests = [
        {"method": r["method"], "request": i, "prompt_len": 5, "tokens": 3, "rounds": 2, "latency_s": 0.5,
         "category": f"c{i}"}
        for r in rows for i in range(count)
    ]  # fmt: skip
    results.write_parquet(directory / "requests.parquet", requests)
    return directory


def test_files_are_read_once_for_all_categories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(data, "read_requests", lambda path: (read.append(path), read_requests(path))[1])
    page = write_report([save_categories(tmp_path / "run", 40)], tmp_path / "out").read_text()
    assert page.count("category c") >= 80 and len(read) == 2  # once for each row


def test_a_report_shows_so_few_categories_that_they_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(data, "MOST_CATEGORIES", 79)
    page = write_report([save_categories(tmp_path / "run", 40)], tmp_path / "out").read_text()
    assert "By category" not in page and "80 rows by category" in caplog.text


def test_names_of_categories_command_no_terminal(tmp_path: Path) -> None:
    figures = {"requests": 1, "latency_s": 0.5, "tokens": 3.0}
    run = save_run(tmp_path / "run", [row("greedy", categories={"\x1b]0;mine\x07<b>": figures})], rounds=False)
    page = write_report([run], tmp_path / "out").read_text()
    assert "\x1b" not in page and "&lt;b&gt;" in page
    assert "\x1b" not in (tmp_path / "out" / "tables" / "1-run-categories.csv").read_text()
