"""Commands on files of which something was changed: each does its work, or refuses in one line, within bounds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.process.children import ROOT
from tests.support.hostile.files import CASES

MESSAGES, SEED = int(os.environ.get("TESTBED_FUZZ", "0")), int(os.environ.get("TESTBED_FUZZ_SEED", "1"))
PER_FILE = 400
"""Messages of TESTBED_FUZZ that count as one file, whose command takes a second."""


def check(case: str, count: int, folder: Path) -> None:
    command = [sys.executable, "-m", "tests.support.hostile.files", case, str(count), str(SEED), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("case", ["trace", "tasks", "target"])
def test_a_few_mutated_files(case: str, tmp_path: Path) -> None:
    check(case, 12, tmp_path)


@pytest.mark.fuzz
@pytest.mark.skipif(not MESSAGES, reason="set TESTBED_FUZZ to the number of messages")
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("case", CASES)
def test_many_mutated_files(case: str, tmp_path: Path) -> None:
    check(case, max(1, MESSAGES // PER_FILE), tmp_path)
