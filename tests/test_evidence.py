"""The list of figures without evidence: complete on toy pages, and empty for README and docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import evidence
from scripts.locked import ROOT
from testbed.config import load
from testbed.experiments.edge.figures import load_figures
from testbed.experiments.latency.load_config import LoadConfig
from testbed.experiments.latency.ramp.config import RampConfig
from testbed.experiments.sweep.files import SweepFile, sweep_files
from testbed.experiments.sweep.points import load_sweep

FIGURE = """\
# Speed

## One thing

- Machine: EPYC
- Date: 2026-11-22
- Command: `testbed latency fit --csv {command}`,
  continued
- Rows: [rows](rows/one.csv)
- Seeds, n: 0
- Interval: {interval}

| | s |
|---|---|
| a | 0.731 |
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "results" / "rows").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "rows" / "one.csv").write_text("s\n0.731\n")
    (tmp_path / "docs" / "results" / "speed.md").write_text(FIGURE.format(command="x", interval="95 %"))
    (tmp_path / "testbed").mkdir()
    (tmp_path / "testbed" / "a.py").write_text("WAIT_S = 0.25\n")
    return tmp_path


def found(root: Path, text: str) -> list[tuple[int, str]]:
    evidence.literals.cache_clear()
    (root / "README.md").write_text(text)
    return [(one.line, one.what) for one in evidence.missing(root) if one.page == "README.md"]


def test_no_number_of_readme_and_docs_is_without_evidence() -> None:
    evidence.literals.cache_clear()
    assert [one for one in evidence.missing() if one.fatal] == []
    assert evidence.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("It takes 0.731 s ([speed](docs/results/speed.md)).", []),
        ("It takes 0.73 s ([speed](docs/results/speed.md)).", [1]),
        ("It takes 0.731 s.", [1]),
        ("## A\n[speed](docs/results/speed.md)\n\n## B\n\nIt takes 0.731 s.", [6]),
        ("It waits 250 ms, or 0.25 s; the paper has 17.3 s.", []),
        ("The paper has 17.3 s.\nHere it is 17.4 s.", [2]),
        ("`sleep 17.4 s`\n\n```\ntook 17.4 s\n```\n\n17.4 seconds, 17.4 kg, version 1.17.4", [7]),
        ("| a | b |\n|---|---|\n| x | 0.912 |", [3]),
        ("41 % more, 41 percent less", [1, 1]),
    ],
)
def test_a_number_stands_on_a_linked_results_page_or_in_the_sources(root: Path, text: str, lines: list[int]) -> None:
    assert [line for line, _ in found(root, text)] == lines


def test_sections_of_results_state_their_evidence(root: Path) -> None:
    page = "docs/results/speed.md"
    assert list(evidence.of_results(page, FIGURE.format(command="x", interval="95 %"), root)) == []
    (unknown,) = evidence.of_results(page, FIGURE.format(command="x", interval="not recorded"), root)
    assert (unknown.line, unknown.what, unknown.fatal) == (3, "One thing: Interval not kept", False)
    (bare,) = evidence.of_results(page, "## Bare\n\n| a |\n|---|\n| 1 |\n", root)
    assert bare.fatal and bare.what == "Bare: no Machine, Date, Command, Rows, Seeds, n, Interval"
    (gone,) = evidence.of_results(page, FIGURE.format(command="sweeps/none.yaml", interval="95 %"), root)
    assert gone.fatal and "sweeps/none.yaml, which is not there" in gone.what
    (root / "docs" / "results" / "rows" / "one.csv").unlink()
    (rows,) = evidence.of_results(page, FIGURE.format(command="x", interval="95 %"), root)
    assert rows.fatal and rows.what == "One thing: no file rows/one.csv"
    assert evidence.main([]) == 0


# ---------------------------------------------------------------- configurations that commands name

LATENCY = [file for file in sweep_files() if file.name.startswith(("latency/", "edge/"))]


@pytest.mark.parametrize("file", LATENCY, ids=lambda file: file.name)
def test_configurations_of_latency_and_edge_figures_are_read_by_their_command(file: SweepFile) -> None:
    if file.command.startswith("testbed optim figures "):
        assert load_figures(file.path).jobs
    else:
        kind = RampConfig if file.command.startswith("testbed latency ramp ") else LoadConfig
        assert load(kind, file.path).windows


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_sweeps_are_read(path: Path) -> None:
    assert load_sweep(path).run
