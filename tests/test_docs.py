"""Documents hold what they say: every function that is named exists, every link leads somewhere, pages are current."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import shlex
from pathlib import Path

import pytest

import testbed
from scripts import commands
from scripts.locked import ROOT
from testbed.cli.main import command_line
from testbed.experiments.sweep.points import KNOWN, SweepConfig

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMED = re.compile(r"`([\w/]+\.py):([\w.]+)`")
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@functools.cache
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


COMMAND = command_line()
WITH_COMMANDS = [page for page in PAGES if "commands" not in page.parts and page.name != "CHANGELOG.md"]


def commands_of(text: str) -> list[str]:
    """Commands of a page: lines of its blocks, and what results say they were measured with."""
    text = text.replace("\\\n", " ")
    found = re.findall(r"^(?:\w+\$\s+)?(testbed [^#\n]*)", text, re.M)
    fields = re.findall(r"^- Command: (.*)", re.sub(r"\n  +", " ", text), re.M)
    return found + [code for line in fields for code in CODE.findall(line)]


def words_of(line: str) -> list[str]:
    """Words of the first command of a line, as a shell reads it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|>&")
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(itertools.takewhile(lambda word: word[:1] not in tuple(";|>&"), lexer))


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    for line in commands_of(page.read_text(encoding="utf-8")):
        words = words_of(line)
        if words[0] != "testbed":
            continue
        command, words = COMMAND, words[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        assert not (words and hasattr(command, "commands")), line
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known, line


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "results").glob("*.md")), ids=lambda path: path.name)
def test_options_of_benchmarks_on_a_page_exist(page: Path) -> None:
    shared = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks" / "support").glob("*.py"))
    for line in commands_of(page.read_text(encoding="utf-8")):
        if line.startswith("benchmarks/"):
            script = (ROOT / line.split()[0]).read_text(encoding="utf-8") + shared
            missing = [option for option in re.findall(r"(--[a-z-]+)", line) if f'"{option}"' not in script]
            assert not missing, line


def test_the_tutorial_names_every_key_of_a_sweep() -> None:
    text = (ROOT / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8")
    keys = set(SweepConfig.__struct_fields__) - {"name", "run"}
    assert all(f"`{key}`" in text for key in keys)
    assert {"window", "rate_mbps", "protocol", "payload", "level"} <= set(KNOWN)


# ---------------------------------------------------------------- names of files and modules

FILE = re.compile(r"(?:[\w.-]+/)*[\w-]+\.py")
DOTTED = re.compile(r"[a-z_]\w*(?:\.\w+)+")
PACKAGE = ROOT / "testbed"
SOURCES = sorted(PACKAGE.rglob("*.py"))
GROUPS = {group for path in SOURCES for group in re.findall(r'"(testbed\.[a-z_]+)"', path.read_text(encoding="utf-8"))}
TOPS = {"testbed", "bs", "ue", "protocols", "channel", "optim", "experiments", "cli", "decision_head", "models"}
SUFFIXES = {"csv", "gguf", "html", "json", "jsonl", "md", "npz", "parquet", "py", "safetensors", "toml", "yaml"}


PLACEHOLDERS = {"file.py", "testbed.NAME"}


def known_files() -> set[str]:
    """Every Python file of the repository, under each of its trailing paths: `fixed.py`, `windows/fixed.py`, …"""
    folders = ("testbed", "tests", "scripts", "benchmarks", "docs")
    paths = [path.relative_to(ROOT).parts for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {"/".join(parts[start:]) for parts in paths for start in range(len(parts))}


KNOWN_FILES = known_files()


@functools.cache
def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name that its module defines."""
    parts = dotted.removeprefix("testbed.").split(".")
    for length in range(len(parts), 0, -1):
        base = PACKAGE.joinpath(*parts[:length])
        module = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if module.exists():
            rest = ".".join(parts[length:])
            return not rest or rest in defined(module) or bool(re.search(rf"^{rest}\b", module.read_text(), re.M))
    return parts[0] in testbed.LIBRARY or dotted in GROUPS


def wrong_names(text: str) -> list[str]:
    """Files and modules that a text names in backticks, and that do not exist."""
    wrong = []
    for code in CODE.findall(text):
        word = code.partition(":")[0]
        if word in PLACEHOLDERS:
            continue
        if FILE.fullmatch(word):
            wrong += [code] if word not in KNOWN_FILES else []
        elif DOTTED.fullmatch(word) and word.split(".")[0] in TOPS and word.rpartition(".")[2] not in SUFFIXES:
            wrong += [code] if not exists(word) else []
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_and_modules_named_on_a_page_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert wrong_names(text) == []


def test_files_and_modules_named_in_docstrings_exist() -> None:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found += [f"{path.relative_to(ROOT)}: {name}" for name in wrong_names(ast.get_docstring(node) or "")]
    assert found == []


def test_a_wrong_name_is_noticed() -> None:
    text = "`bs/attic.py` `ue/session.py` `attic.py:Judge` `ue.attic` `ue.session` `testbed.bs.Attic` `power.parquet`"
    assert wrong_names(text) == ["bs/attic.py", "attic.py:Judge", "ue.attic", "testbed.bs.Attic"]


# ---------------------------------------------------------------- results

RESULTS = sorted(page for page in (ROOT / "docs" / "results").glob("*.md") if page.name != "index.md")
EVIDENCE = ("Machine", "Date", "Command", "Seeds, n", "Interval")


@pytest.mark.parametrize("page", RESULTS, ids=lambda path: path.stem)
def test_every_table_of_results_states_its_evidence(page: Path) -> None:
    stated: set[str] = set()
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("## ") and len(stated) == len(EVIDENCE):
            stated = set()
        stated |= {name for name in EVIDENCE if line.startswith(f"- {name}: ")}
        assert not line.startswith("|---") or stated == set(EVIDENCE), line


def test_every_page_is_in_the_index() -> None:
    linked = set()
    for index in (ROOT / "docs" / "index.md", ROOT / "docs" / "results" / "index.md"):
        links = re.findall(r"\]\(([^)#\s]+\.md)\)", index.read_text(encoding="utf-8"))
        linked |= {(index.parent / link).resolve() for link in links}
    commands_pages = set((ROOT / "docs" / "reference" / "commands").glob("*.md"))
    pages = set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "index.md"} - commands_pages
    assert pages <= linked
