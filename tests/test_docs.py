"""Documents hold what they say: every function that is named exists, every link leads somewhere, pages are current."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from scripts import commands
from scripts.environment import ROOT
from testbed.cli.main import app
from testbed.experiments.sweep.points import KNOWN, SweepConfig

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMED = re.compile(r"`([\w/]+\.py):([\w.]+)`")


def defined(path: Path) -> set[str]:
    """Functions and classes of a file, and methods and fields of its classes as `Class.name`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def test_every_function_that_holds_an_equation_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "reference" / "equations.md").read_text(encoding="utf-8"))
    assert len(named) > 50
    missing = [f"{path}:{name}" for path, name in named if name not in defined(ROOT / "testbed" / path)]
    assert not missing


def test_every_row_of_the_equations_names_what_holds_it() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "reference" / "equations.md").read_text(encoding="utf-8").splitlines()
        if line[:1] == "|"
    ]
    rows = [line for line in rows if not line.startswith(("| |", "|---"))]
    assert rows
    assert all(NAMED.search(line) for line in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_pages_of_commands_are_what_the_command_line_says() -> None:
    assert commands.stale() == [], "run python -m scripts.commands"


def test_a_page_that_is_out_of_date_is_noticed(tmp_path: Path) -> None:
    for name, text in commands.pages().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert commands.stale(tmp_path) == []
    (tmp_path / "sweep.md").write_text("old", encoding="utf-8")
    (tmp_path / "gone.md").touch()
    (tmp_path / "ue.md").unlink()
    assert commands.stale(tmp_path) == ["gone.md", "sweep.md", "ue.md"]


@pytest.mark.parametrize("name", ["start/tutorial.md", "guides/extending.md"])
def test_commands_and_options_of_the_guides_exist(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split("#")[0] for line in text.splitlines() if line.startswith("testbed ")]
    assert lines
    for line in lines:
        words = shlex.split(line)[1:]
        command = get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known, line


def test_the_tutorial_names_every_key_of_a_sweep() -> None:
    text = (ROOT / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8")
    keys = set(SweepConfig.__struct_fields__) - {"name", "run"}
    assert all(f"`{key}`" in text for key in keys)
    assert {"window", "rate_mbps", "protocol", "payload", "level"} <= set(KNOWN)
