"""The guide to cells: its configurations run, and so do the cells that come with the testbed; its commands run in `make
long`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts.locked import ROOT
from testbed.cli.main import main

GUIDE = "docs/guides/cell.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", (ROOT / GUIDE).read_text(encoding="utf-8"), re.DOTALL)
CELLS = sorted((ROOT / "sweeps/cell").glob("*.yaml"))
ELSEWHERE = {"planned.yaml": "needs the plan of an earlier command", "classes-recorded.yaml": "needs a trace"}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_its_configurations_run(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cell.yaml").write_text(BLOCKS[number])
    assert main(["cell", "run", str(tmp_path / "cell.yaml"), "--seconds", "4", "--json"]) == 0
    assert all(row["messages"] > 0 for row in json.loads(capsys.readouterr().out)["rows"])


@pytest.mark.parametrize("path", [one for one in CELLS if one.name not in ELSEWHERE], ids=lambda path: path.stem)
def test_cells_that_come_with_the_testbed_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cell", "run", str(path), "--seconds", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cell"]["passes"] > 0
