"""Commands of README and docs: read off the pages, set aside with a reason, and run."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from scripts import doc_commands
from scripts.doc_commands import DocCommand, aside, commands, main, outputs, run

PAGE = """
Text with `testbed not --this`.

```
testbed sweep --list            # the bundled ones
testbed demo --prompts 1 \\
    --methods greedy
make test
testbed sweep --list
```
"""


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "start").mkdir(parents=True)
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs" / "start" / "other.md").write_text("```\ntestbed doctor\n```\n```\ntestbed sweep --list\n```\n")
    return tmp_path


def test_every_command_is_read_once_whole_and_without_its_comment(pages: Path) -> None:
    assert list(commands(pages)) == [
        DocCommand("README.md", 5, "testbed sweep --list"),
        DocCommand("README.md", 6, "testbed demo --prompts 1 --methods greedy"),
        DocCommand("docs/start/other.md", 2, "testbed doctor"),
    ]


def test_what_cannot_run_here_has_a_reason(tmp_path: Path) -> None:
    for text, why in (
        ("testbed ue run --bs tcp://192.0.2.7:5555", "machine"),
        ("testbed report runs/far", "runs/far"),
        ("testbed bs serve --model ./Qwen2.5-7B-Instruct", "model"),
        ("testbed latency sizes --csv 4.7=runs/a/points.csv", "runs/a/points.csv"),
        ("testbed head compare csi=runs/head --out runs/b", "needs runs/head,"),
    ):
        assert why in (aside(DocCommand("README.md", 1, text), tmp_path) or ""), text
    assert aside(DocCommand("README.md", 1, "testbed demo --out runs/new"), tmp_path) is None


def test_what_an_interrupted_command_leaves_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    command = DocCommand("README.md", 1, "testbed report runs/first")
    assert aside(command, tmp_path) is None
    left = outputs(["testbed", "demo", "--out", "runs/first"])
    assert "runs/first" in (aside(command, tmp_path, left) or "")
    assert outputs(["testbed", "sweep", "wisv-table1"]) == {"runs/wisv-table1"} and not outputs(["testbed", "doctor"])
    begun = run(DocCommand("", 1, "testbed bs serve --engine synthetic --bind tcp://127.0.0.1:*"), tmp_path, 8.0)
    assert begun.ok and begun.interrupted


def test_the_pages_have_commands_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert listed.count("    runs") > 25 and listed.count("aside: ") > 10


def test_a_command_ends_or_is_interrupted_and_a_wrong_one_fails(tmp_path: Path) -> None:
    assert run(DocCommand("", 1, "testbed sweep --list"), tmp_path).ok
    wrong = run(DocCommand("", 1, "testbed sweep nothing-of-the-kind"), tmp_path)
    assert not wrong.ok and "exit code 2" in wrong.text


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_all_commands_of_readme_and_docs_run(capsys: pytest.CaptureFixture[str]) -> None:
    failed = main([])
    said = capsys.readouterr().out
    assert failed == 0, "\n".join(f"{a}\n{b}" for a, b in itertools.pairwise(said.splitlines()) if "FAILED" in b)
    assert doc_commands.LIMIT_S <= 60
