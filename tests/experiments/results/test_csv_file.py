"""Rows as CSV files."""

from __future__ import annotations

from pathlib import Path

from testbed.experiments.results.csv_file import write_csv


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """A directory of somebody else's may hold links to files of whoever writes results into it."""
    victim, path = tmp_path / "victim", tmp_path / "rows.csv"
    victim.write_text("precious")
    path.symlink_to(victim)
    write_csv(path, [{"a": 1}])
    assert victim.read_text() == "precious" and path.read_text() == "a\n1\n" and not path.is_symlink()
