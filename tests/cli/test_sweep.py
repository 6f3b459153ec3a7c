"""`testbed sweep`, run again when all points are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.cli.main import main

SWEEP = """
run: {channel: 'kind=virtual,profile=wisv,rtt_ms=50', engine: llama, methods: [greedy], prompts: 1, max_tokens: 8}
grid: {window: [4]}
"""


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/elsewhere", "..", "", "\x1b[2Jcleared"])
def test_the_name_of_a_sweep_points_nowhere_else(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP + f"name: {json.dumps(name)}\n")
    assert main(["sweep", str(path), "--check"]) == 2
    said = capsys.readouterr().err
    assert "name must be the name of a folder" in said and said.strip().isprintable()


def test_a_finished_sweep_says_that_nothing_was_left_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    out = tmp_path / "out"
    said = []
    for _ in range(2):
        assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(out)]) == 0
        found = capsys.readouterr()
        assert "greedy" in found.out
        said.append(found.err.splitlines()[-1])
    assert said[0].startswith(f"wrote {out};") and said[1].startswith(f"nothing left to run in {out};")
