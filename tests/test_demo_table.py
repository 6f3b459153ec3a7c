"""The table of README: that of the results, with the columns that the command prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.demo_table import PAGES, main, table, tables, write
from testbed.cli.output import COLUMNS
from testbed.errors import BadInput
from tests.support.reports import row, save_run


def test_readme_has_the_table_of_the_results_and_columns_of_the_command() -> None:
    readme, results = tables()
    assert readme == results
    headers = [cell.strip() for cell in readme.splitlines()[0].strip("|").split("|")]
    assert set(headers) <= {header for header, _ in COLUMNS.values()} and len(headers) >= 10


def test_the_table_of_a_run_replaces_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", [row("greedy", latency_s=0.25), row("fh", acceptance_cond=None)], rounds=False)
    for page in PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text("before\n\n| method | n |\n|---|---|\n| old | 1 |\n\nafter\n\n| method | x |\n")
    write(table(run), tmp_path)
    for page in PAGES:
        found = (tmp_path / page).read_text()
        assert found.startswith("before\n\n| method | n | latency s | tok/s | AAL |") and "old" not in found
        assert "| greedy | 3 | 0.2500 |" in found and found.endswith("|\n\nafter\n\n| method | x |\n")


def test_its_command_needs_a_run_directory(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a run directory"):
        main([str(tmp_path)])
