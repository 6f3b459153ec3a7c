"""The testbed as a library: runs and sweeps in virtual time, their tables and figures, and refusals."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed.library import __all__ as names

RUN = {
    "prompts": 2,
    "methods": ["target-only", "greedy"],
    "max_tokens": 32,
    "engine": "transformers",
    "channel": "kind=virtual,uplink_mbps=20,downlink_mbps=20,rtt_ms=50,profile=wisv",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> testbed.Run:
    return testbed.run(RUN, tmp_path_factory.mktemp("library") / "run")


def test_a_run_has_rows_rounds_and_requests_as_tables(finished: testbed.Run) -> None:
    assert finished.rows["method"].to_list() == ["target-only", "greedy"]
    assert finished.rows["lossless"].to_list() == [True, True]
    assert finished.config["prompts"] == 2 and finished.summary["schema"] == 1
    rounds = finished.rounds.filter(method="greedy")
    requests = finished.requests.filter(method="greedy")
    aal = rounds["committed"].sum() / len(rounds)
    assert finished.rows.filter(method="greedy")["aal"].item() == pytest.approx(aal)
    assert requests["tokens"].sum() == rounds["committed"].sum()


def test_a_directory_is_loaded_again(finished: testbed.Run) -> None:
    again = testbed.load(str(finished.path))
    assert again.rows.equals(finished.rows) and "2 rows" in repr(again)


def test_figures_of_the_report_are_drawn(finished: testbed.Run, tmp_path: Path) -> None:
    assert "latency" in finished.figures
    figure = testbed.plot(finished)
    assert figure.axes and "latency" in figure.axes[0].get_xlabel()
    with pytest.raises(testbed.BadInput, match=r"^no figure 'nothing' of this run; known: latency"):
        testbed.plot(finished, "nothing")
    assert finished.report(tmp_path).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_sweep_resumes_and_keeps_the_rounds_of_its_points_apart(tmp_path: Path) -> None:
    config = {"name": "two", "run": {**RUN, "methods": ["greedy"]}, "grid": {"window": [2, 4]}}
    first = testbed.sweep(config, tmp_path / "two")
    stamps = {path: path.stat().st_mtime_ns for path in first.path.glob("points/*/summary.json")}
    second = testbed.sweep(config, tmp_path / "two")
    assert len(stamps) == 2 and stamps == {path: path.stat().st_mtime_ns for path in stamps}
    assert second.rows["window"].to_list() == [2, 4]
    for row in second.rows.iter_rows(named=True):
        rounds = second.rounds.filter(point=row["point"])
        assert rounds["drafted"].max() == row["window"]
        assert rounds["committed"].sum() / len(rounds) == pytest.approx(row["aal"])


def test_it_runs_where_an_event_loop_runs(tmp_path: Path) -> None:
    async def notebook() -> testbed.Run:
        return testbed.run({**RUN, "methods": ["greedy"], "prompts": 1}, tmp_path / "run")

    assert asyncio.run(notebook()).rows["requests"].to_list() == [1]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"prompt": 1}, "unknown field `prompt`"),
        ({"prompts": "many"}, "Expected `int`"),
        ({**RUN, "methods": ["none"]}, "unknown"),
        ("/nowhere.yaml", "nowhere"),
    ],
)
def test_what_cannot_run_is_refused_and_leaves_nothing(config: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(testbed.BadInput, match=said):
        testbed.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(testbed.BadInput, match=str(tmp_path)):
        testbed.load(tmp_path)


def test_every_name_of_the_library_is_one_of_the_package() -> None:
    assert set(names) == set(testbed.LIBRARY) <= set(dir(testbed))
    assert all(getattr(testbed, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        testbed.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_no_part_of_it() -> None:
    code = "import sys, testbed; print([m for m in sys.modules if m.startswith('testbed.')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
