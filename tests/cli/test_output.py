"""Which columns people are shown of a run, and of a sweep."""

from __future__ import annotations

import errno
import io
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from fcntl import ioctl
from typing import Any

import pytest
from rich.table import Table

from testbed.cli.main import main
from testbed.cli.output import COLUMNS, GRID_COLUMNS, grid_columns, note, visible
from testbed.cli.tables import FORMATS, STYLE, TableStyle, print_rows, print_table


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """The style that commands begin with."""
    token = STYLE.set(TableStyle())
    yield
    STYLE.reset(token)


def row(**values: Any) -> dict[str, Any]:
    return {"method": "fh", "window": 8, "rtt_ms": 50.0, "aal": 3.5, "latency_s": 0.25, **values}


def test_of_a_run_the_usual_ones_are_shown() -> None:
    assert grid_columns([row(), row(method="sh")]) is COLUMNS


def test_text_from_elsewhere_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "a\x1b]52;c;cm0=\x1b\\b\x9b2J\x08\x7fc\r\nd\te\u00e9\U0001f642"
    assert visible(forged) == "a\ufffd]52;c;cm0=\ufffd\\b\ufffd2J\ufffd\ufffdc\nd\te\u00e9\U0001f642"
    note(forged)
    assert main([forged]) == 2
    for form in FORMATS:
        STYLE.set(TableStyle(form))
        print_rows([row(method=forged)], forged, COLUMNS)
        table = Table("name", title=forged)
        table.add_row(forged)
        print_table(table)
    said = capsys.readouterr()
    assert not set(said.out + said.err) & {"\x1b", "\x9b", "\x08", "\r"}


def test_lines_break_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 40, 0, 0))
    text = f"{'word ' * 30}{'x' * 60} a-long-name-with-hyphens"
    with os.fdopen(follower, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        note(text)
        noted = os.read(leader, 65536).decode().splitlines()
        assert main(["demo", "--out"]) == 2
        refused = os.read(leader, 65536).decode().splitlines()
    os.close(leader)
    assert all(len(line) <= 40 or " " not in line for line in (*noted, *refused)) and max(map(len, noted)) == 60
    assert " ".join(noted) == text and "requires an argument" in " ".join(refused) and len(refused) > 1


def test_cells_cannot_add_rows_or_commands_of_latex(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("md", "latex"):
        STYLE.set(TableStyle(form))
        print_rows([row(method="a\n| b | 1 |"), row(method=r"\input /etc/passwd~^")], None, COLUMNS)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("| ")]) == 4
    cell = r"\textbackslash{}input /etc/passwd\textasciitilde{}\textasciicircum{} "
    assert any(line.startswith(cell) for line in lines)


@pytest.mark.parametrize("cell", ["[/nothing]", "[4, 8]", "[bold]x"])
def test_brackets_are_no_markup_of_tables(cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name")
    table.add_row(cell)
    print_table(table)
    assert cell in capsys.readouterr().out


def test_of_a_sweep_what_differs_is_shown_and_what_does_not_is_left_out() -> None:
    shown = grid_columns([row(threshold=0.0), row(threshold=0.5)])
    assert "threshold" in shown and "method" in shown and not {"window", "rtt_ms", "series"} & set(shown)
    assert list(shown) == [key for key in GRID_COLUMNS if key in shown]


def test_the_name_of_a_series_stands_for_what_it_sets(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        row(series="one", judge="strict"),
        row(series="two", method="sh", judge="head"),
        row(series="two", window=4),
    ]
    shown = grid_columns(rows)
    assert {"series", "window"} <= set(shown) and not {"method", "judge"} & set(shown)
    print_rows(rows, "title", shown)
    said = capsys.readouterr().out
    assert all(word in said for word in ("title", "series", "one", "two", "0.2500")) and "strict" not in said


def test_what_the_method_sets_and_equal_rates_take_no_columns_of_their_own() -> None:
    rows = [
        row(method=method, threshold=threshold, uplink_mbps=rate, downlink_mbps=rate, window=window)
        for method, threshold in (("greedy", None), ("fh", 0.0))
        for rate in (5.0, 500.0)
        for window in (4, 8)
    ]
    shown = grid_columns(rows)
    assert {"method", "window", "uplink_mbps"} <= set(shown) and not {"threshold", "downlink_mbps"} & set(shown)
    assert shown["uplink_mbps"][0] == "Mbit/s"
    rows[0]["downlink_mbps"] = 20.0
    assert {"uplink_mbps", "downlink_mbps"} <= set(grid_columns(rows))


@pytest.mark.parametrize("error", [errno.EPIPE, errno.ENOSPC])
def test_a_note_that_cannot_be_written_is_lost(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status line of a base station whose reader was gone failed, and `/readyz` with it."""

    class Gone(io.StringIO):
        def flush(self) -> None:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(sys, "stderr", Gone())
    note("nobody reads this")


def test_any_setting_of_a_grid_is_a_column() -> None:
    """Rows that differ in a setting without a column of its own looked like repetitions."""
    shown = grid_columns([row(drafter_memory=0), row(drafter_memory=100_000)])
    assert shown["drafter_memory"] == ("drafter memory", "{}")
    assert "drafter_memory" not in grid_columns([row(window=4), row(window=8)])
