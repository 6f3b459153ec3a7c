"""The floors of the architecture: the rules hold, the checker would notice where they did not, and a UE stays light."""

from __future__ import annotations

import ast
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import testbed.channel
import testbed.llama
import testbed.protocols
import testbed.ue

ROOT = Path(__file__).resolve().parent.parent
LINT = Path(sys.executable).with_name("lint-imports")
HEAVY = ("torch", "transformers", "vllm")


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [str(LINT), "--no-cache", "--no-logo"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_rules_hold() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


BROKEN = [
    ("testbed.ue.windows.base", "testbed.bs.engines.base"),
    ("testbed.bs.engines.batched", "testbed.ue.windows.base"),
    ("testbed.protocols.codec", "testbed.ue.windows.base"),
    ("testbed.channel.link", "testbed.protocols.codec"),
    ("testbed.errors", "testbed.config"),
    ("testbed.bs.judging.base", "testbed.models.problems"),
    ("testbed.ue.records", "torch"),
    ("testbed.channel.csi", "transformers"),
    ("testbed.experiments.results.directory", "testbed.cli.output"),
]


def test_broken_rules_are_noticed(tmp_path: Path) -> None:
    copy_package(tmp_path)
    for importer, imported in BROKEN:
        path = tmp_path / f"{importer.replace('.', '/')}.py"
        path.write_text(f"{path.read_text()}\n\ndef late() -> None:\n    import {imported}\n")
    done = lint(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    missed = [f"{a} -> {b}" for a, b in BROKEN if not re.search(rf"{a} -> {b}\b", done.stdout)]
    assert missed == []


def test_circles_and_folders_without_a_floor_are_noticed(tmp_path: Path) -> None:
    copy_package(tmp_path)
    messages = tmp_path / "testbed" / "protocols" / "messages.py"
    messages.write_text(f"{messages.read_text()}\nimport testbed.protocols.codec\n")
    (tmp_path / "testbed" / "attic").mkdir()
    (tmp_path / "testbed" / "attic" / "__init__.py").touch()
    done = lint(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "No circles inside a folder BROKEN" in done.stdout
    assert "testbed.attic" in done.stdout


def copy_package(directory: Path) -> None:
    leave = shutil.ignore_patterns("data", "__pycache__")
    shutil.copytree(ROOT / "testbed", directory / "testbed", ignore=leave)
    shutil.copy(ROOT / "pyproject.toml", directory)


@pytest.mark.parametrize(
    "package", [testbed.ue, testbed.llama, testbed.protocols, testbed.channel], ids=lambda p: p.__name__
)
def test_no_module_of_a_ue_loads_a_deep_learning_library(package: object) -> None:
    names = [info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]  # type: ignore[attr-defined]
    assert names
    loaded = python(f"import sys, {', '.join(names)}; print([m for m in {HEAVY!r} if m in sys.modules])")
    assert loaded == "[]"


def test_the_command_line_starts_without_a_deep_learning_library() -> None:
    assert python(f"import sys, testbed.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])") == "[]"


@pytest.mark.parametrize("modules", ["testbed.ue", "testbed.ue.session, testbed.ue.llama.drafter"])
def test_a_ue_is_imported_in_half_a_second(modules: str) -> None:
    # CPU time: what an idle machine takes, whatever else this one is doing.
    times = [float(python(f"import time; t = time.process_time(); import {modules}; print(time.process_time() - t)"))]
    while times[-1] >= 0.5 and len(times) < 5:
        times.append(
            float(python(f"import time; t = time.process_time(); import {modules}; print(time.process_time() - t)"))
        )
    assert min(times) < 0.5


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "testbed").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
