"""Completion in a real bash: the printed script, on a terminal, with names of registries and bundled files."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.assets import bundled_files
from testbed.protocols.methods import methods

LIMIT_S = 60.0
PROMPT = "ready> "


class Bash:
    """An interactive bash on a terminal, with `testbed` on its path and the completion script that it prints."""

    def __init__(self, folder: Path) -> None:
        program = folder / "testbed"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m testbed "$@"\n')
        program.chmod(0o755)
        environment = {
            **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PS1": PROMPT, "TERM": "dumb", "HOME": str(folder),
            "INPUTRC": "/dev/null",
        }  # fmt: skip
        self._terminal, follower = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"], stdin=follower, stdout=follower, stderr=follower, cwd=folder,
            env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(follower)
        self._until(PROMPT)
        script = {**environment, "_TESTBED_COMPLETE": "source_bash"}
        printed = subprocess.run([program], env=script, capture_output=True, text=True, check=True, timeout=LIMIT_S)
        (folder / "completion.sh").write_text(printed.stdout)
        self.run("source completion.sh; bind 'set enable-bracketed-paste off'")

    def run(self, line: str) -> None:
        """Run a line, until the next prompt."""
        os.write(self._terminal, f"{line}\n".encode())
        self._until(PROMPT)

    def complete(self, line: str, wanted: str) -> None:
        """Type a line and the tab key, wait until the terminal shows the wanted text, and delete the line."""
        os.write(self._terminal, f"{line}\t".encode())
        self._until(wanted)
        os.write(self._terminal, b"\x15\n")
        self._until(PROMPT)

    def close(self) -> None:
        """End it."""
        os.close(self._terminal)
        self._process.kill()
        self._process.wait()

    def _until(self, wanted: str) -> None:
        shown, deadline_s = "", time.monotonic() + LIMIT_S
        while wanted not in shown.replace("\x07", ""):
            left_s = deadline_s - time.monotonic()
            assert left_s > 0 and select.select([self._terminal], [], [], left_s)[0], f"no {wanted!r} in {shown!r}"
            shown += os.read(self._terminal, 65536).decode(errors="replace")


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bash]:
    shell = Bash(tmp_path_factory.mktemp("bash"))
    yield shell
    shell.close()


@pytest.mark.slow
def test_names_are_completed_in_a_real_bash(bash: Bash) -> None:
    assert [name for name in bundled_files.names("sweeps") if name.startswith("wisv-table1")] == ["wisv-table1"]
    assert [name for name in methods() if name.startswith("targ")] == ["target-only"]
    bash.complete("testbed sw", "testbed sweep ")
    bash.complete("testbed sweep wisv-table", "testbed sweep wisv-table1 ")
    bash.complete("testbed demo --methods targ", "testbed demo --methods target-only ")
    bash.complete("testbed demo --methods greedy,targ", "testbed demo --methods greedy,target-only ")
    bash.complete("testbed bs serve --sched", "testbed bs serve --scheduler ")
