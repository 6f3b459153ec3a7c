"""Tables of commands: whole at any width, rows told apart in every part, and the same content in other formats."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from testbed.cli import tables
from testbed.cli.main import main
from testbed.cli.output import COLUMNS, grid_columns
from testbed.cli.tables import FORMATS, SEARCH, STYLE, ColumnSearch, TableStyle, print_held, print_rows, print_table
from testbed.errors import BadInput
from tests.support.reports import make_sweep, row, save_run


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """The style that commands begin with."""
    token = STYLE.set(TableStyle())
    yield
    STYLE.reset(token)


def on_terminal(arguments: list[str], columns: int) -> list[str]:
    """Lines that a command prints on a terminal of this width."""
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "testbed", *arguments]
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(command, stdout=follower, stderr=subprocess.PIPE, stdin=follower, env=environment)
    os.close(follower)
    shown = b""
    try:
        while part := os.read(leader, 65536):
            shown += part
    except OSError:  # the terminal is closed
        pass
    os.close(leader)
    assert process.wait(60) == 0 and process.stderr is not None, process.stderr
    process.stderr.close()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).splitlines()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run and a sweep."""
    root = tmp_path_factory.mktemp("runs")
    rows = [row(method, queue_s=0.001, draft_s=0.02, link_s=0.03) for method in ("target-only", "greedy", "fh", "sh")]
    return save_run(root / "run", rows, rounds=False), make_sweep(root / "sweep")


@pytest.mark.parametrize("columns", [80, pytest.param(100, marks=pytest.mark.long), 120])
def test_tables_of_runs_and_sweeps_fit_terminals(columns: int, runs: tuple[Path, Path], tmp_path: Path) -> None:
    for run in runs:
        lines = on_terminal(["report", str(run), "--out", str(tmp_path / run.name)], columns)
        bars = [line for line in lines if "│" in line]
        assert bars and max(map(len, lines)) <= columns and not any("…" in line for line in bars)
        names = [line.split("│")[1].strip() for line in bars]
        values = [line for line in bars if re.search(r"\d", line)]
        assert values, "no number is shown"
        headers = [line for line in lines if "┃" in line]
        first = [cell.strip() for cell in headers[0].split("┃")]
        assert "latency s" in " ".join(first) or run.name == "sweep"
        document = json.loads((run / "summary.json").read_text())
        parts = len(headers)
        assert len(bars) == parts * len(document["rows"]) and all(names)


def test_every_part_of_a_divided_table_tells_its_rows_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "console", lambda: Console(width=60, highlight=False))
    rows = [
        {"method": "fh", "window": k, "uplink_mbps": rate, **{key: 500 for key in COLUMNS if key != "method"}}
        for k in (8, 16)
        for rate in (5.0, 500.0)
    ]
    print_rows(rows, "a sweep", grid_columns(rows))
    shown = capsys.readouterr().out
    for part in shown.split("┏")[1:]:
        cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in part.splitlines() if "│" in line]
        assert len(cells) == 4 and len({tuple(line) for line in cells}) == 4, part
    assert shown.count("┏") > 1 and max(map(len, shown.splitlines())) <= 60


@pytest.mark.parametrize("width", [40, 80, 250])
def test_a_table_is_whole_on_any_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "console", lambda: Console(width=width, highlight=False))
    rows = [{"method": name, **{key: 500 for key in COLUMNS if key != "method"}} for name in ("greedy", "fh")]
    print_rows(rows, "two methods", COLUMNS)
    shown = capsys.readouterr().out
    assert "…" not in shown and max(map(len, shown.splitlines())) <= width
    assert all(header in shown for header, _ in COLUMNS.values())
    parts = shown.count("greedy")
    assert parts == shown.count("fh ") == shown.count("method ") and (parts == 1) == (width == 250)


def test_a_wide_table_is_not_divided(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tables, "console", lambda: Console(width=40, highlight=False))
    STYLE.set(TableStyle(wide=True))
    print_rows([{"method": "fh", **{key: 500 for key in COLUMNS if key != "method"}}], None, COLUMNS)
    shown = capsys.readouterr().out
    assert shown.count("method") == 1 and all(header in shown for header, _ in COLUMNS.values())


def shown_as(form: str, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], *columns: str) -> str:
    STYLE.set(TableStyle(form=form, columns=columns))
    SEARCH.set(ColumnSearch())
    print_rows(rows, "title", COLUMNS)
    print_held()
    return capsys.readouterr().out


def test_formats_hold_the_same_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"method": "fh", "latency_s": 0.25, "lossless": True, "more": "50 % | x"},
        {"method": "s_h", "latency_s": None, "lossless": False, "more": None},
    ]
    wanted = ("method", "latency s", "lossless", "more")
    assert shown_as("md", rows, capsys, *wanted).splitlines() == [
        "| method | latency s | lossless | more |", "| --- | ---: | ---: | --- |",
        r"| fh | 0.2500 | yes | 50 % \| x |", "| s_h | – | no | – |",
    ]  # fmt: skip
    assert list(csv.reader(io.StringIO(shown_as("csv", rows, capsys, *wanted)))) == [
        list(wanted), ["fh", "0.2500", "yes", "50 % | x"], ["s_h", "", "no", ""],
    ]  # fmt: skip
    found = json.loads(shown_as("json", rows, capsys, *wanted))
    assert found == [{key: one[key] for key in ("method", "latency_s", "lossless", "more")} for one in rows]
    tex = shown_as("latex", rows, capsys, *wanted)
    assert r"\begin{tabular}{lrrl}" in tex and r"fh & 0.2500 & yes & 50 \% | x \\" in tex and r"s\_h & -- & no" in tex


def test_columns_are_chosen_by_key_or_header_and_unknown_ones_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"method": "fh", "latency_s": 0.25, "judge_s": 0.125, "config": {}}]
    assert shown_as("md", rows, capsys, "judge_s", "latency s").startswith("| judge_s | latency s |")
    assert shown_as("md", rows, capsys, "all").startswith("| method | latency s | judge_s |")
    for names, refusal in (
        (("nothing",), "no column 'nothing'; known: method, latency_s, judge_s"),
        (("method", "latencys"), "no column 'latencys'; did you mean 'latency_s'"),
    ):
        with pytest.raises(BadInput, match=re.escape(refusal)):
            shown_as("md", rows, capsys, *names)
        assert capsys.readouterr().out.startswith("| method | latency s |"), "the usual columns, so that no row is lost"


def test_tables_that_commands_draw_themselves_take_formats_too(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("check", "state", title="doctor")
    table.add_row("a name[/from elsewhere]", "ok")
    table.add_row("=1+1", "-0.5")
    STYLE.set(TableStyle(form="csv"))
    print_table(table)
    assert capsys.readouterr().out == "check,state\na name[/from elsewhere],ok\n'=1+1,-0.5\n"
    STYLE.set(TableStyle(form="json", columns=("state",)))
    print_table(table)
    assert json.loads(capsys.readouterr().out) == [{"state": "ok"}, {"state": "-0.5"}]


def test_the_command_line_sets_the_style_and_forgets_it(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = str(runs[0]), str(tmp_path)
    assert main(["report", run, "--out", out, "--format", "md", "--columns", "method,aal"]) == 0
    assert capsys.readouterr().out.startswith("| method | AAL |")
    assert main(["report", run, "--out", out]) == 0
    assert "┃" in capsys.readouterr().out
    assert main(["report", run, "--out", out, "--format", "xls"]) == 2
    assert ", ".join(FORMATS) in capsys.readouterr().err


def test_empty_columns_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"method": "fh", "requests": 4, "latency_s": 0.25, "latency_p95_s": 0.5}]
    assert "p95 s" not in shown_as("md", rows, capsys)  # of four requests, no percentile is shown


def test_each_table_shows_the_chosen_columns_that_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    STYLE.set(TableStyle(form="md", columns=("share", "latency_s")))
    SEARCH.set(ColumnSearch())
    for rows in ([{"method": "fh", "latency_s": 0.25}], [{"name": "a"}], [{"name": "a", "share": 1, "latency_s": 2.0}]):
        print_rows(rows, None, COLUMNS)
    print_held()
    assert re.findall(r"^\|.*[a-z].*", capsys.readouterr().out, re.M) == ["| share | latency s |", "| latency s |"]


def test_an_unknown_column_of_a_command_is_refused_with_the_nearest_one(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for names in ("latencys", "method,latencys"):
        assert main(["report", str(runs[0]), "--out", str(tmp_path), "--columns", names]) == 2
        said = capsys.readouterr()
        assert "no column 'latencys'; did you mean 'latency_s'? known: method" in said.err.splitlines()[-1]
        assert "AAL" in said.out
    assert main(["report", str(runs[0]), "--out", str(tmp_path), "--columns", "method,latency s"]) == 0


def test_a_table_that_is_not_shown_on_a_terminal_is_not_divided(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"method": "x" * 300, **{key: 500 for key in COLUMNS if key != "method"}} for _ in range(2)]
    print_rows(rows, None, COLUMNS)
    assert capsys.readouterr().out.count("method") == 1


def test_a_value_of_another_type_than_its_columns_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Damaged results ended a report with a traceback."""
    print_rows([{"requests": "many"}, {"requests": [1]}, {"requests": 3}], None, {"requests": ("requests", "{:d}")})
    assert {"many", "[1]", "3"} <= set(capsys.readouterr().out.split())
