"""Processes that are started in a folder with modules of somebody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed import __version__
from testbed.process.children import ROOT, module_command, signal_name

SHADOWED = ("testbed", "runpy", "multiprocessing", "json", "numpy", "typer")
STARTER = """
import multiprocessing, os, sys
from testbed.cli import main

def work(line):
    line.send(sys.path[0])

def start(*_):
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,))
        process.start()
        theirs.close()
        ours.recv()
        process.join()
    return process.exitcode

if __name__ == "__main__":
    main.main = start
    main.run()
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder in which every module that is imported from it leaves a mark."""
    folder = tmp_path / "results"
    for name in SHADOWED:
        (folder / name).mkdir(parents=True)
        for file in ("__init__.py", "__main__.py"):
            (folder / name / file).write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')")
    return folder


def test_the_current_directory_has_no_modules_for_a_child(hostile: Path) -> None:
    command = module_command("testbed", "--version")
    done = subprocess.run(command, cwd=hostile, capture_output=True, text=True, timeout=120, check=False)
    assert not (hostile.parent / "ran").exists()
    assert __version__ in done.stdout


def test_a_child_runs_the_package_of_its_parent_wherever_that_is(tmp_path: Path) -> None:
    """As in a checkout that is not installed, where Python found it in the current directory."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "here.py").write_text("import sys; print(sys.argv[1:], sys.path[0])")
    _, option, launcher, root, *_ = module_command("here", "a")
    assert root == ROOT
    command = [sys.executable, option, launcher, str(tmp_path / "other"), "here", "a"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"['a'] {tmp_path / 'other'}\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot leave out the current directory")
def test_nor_for_processes_of_multiprocessing(hostile: Path) -> None:
    starter = hostile.parent / "starter.py"
    starter.write_text(STARTER)
    done = subprocess.run(
        [sys.executable, str(starter)], cwd=hostile, capture_output=True, text=True, timeout=240, check=False
    )
    assert not (hostile.parent / "ran").exists()
    assert (done.returncode, done.stderr) == (0, "")


def test_names_of_signals() -> None:
    """Most real-time signals have none, which was a traceback."""
    assert [signal_name(number) for number in (9, 40)] == ["SIGKILL", "signal 40"]
