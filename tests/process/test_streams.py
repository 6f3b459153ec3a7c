"""Standard streams that are closed, or cannot encode what is written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = "from testbed.process.streams import open_streams; open_streams(); "


def python(code: str, redirected: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f"exec \"$0\" -c '{CODE}{code}' {redirected}", sys.executable]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | more)


@pytest.mark.parametrize("redirected", ["", "<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_streams_are_opened_before_other_files_take_their_numbers(redirected: str) -> None:
    code = 'import os, sys; print(sys.stdin.read()); print(1, file=sys.stderr); sys.exit(os.open("/dev/null", 0) < 3)'
    done = python(code, redirected + " </dev/null" * ("<" not in redirected))
    assert done.returncode == 0
    assert done.stderr == ("" if "2>" in redirected else "1\n")


def test_characters_that_stdout_cannot_encode_are_escaped() -> None:
    done = python("print(chr(945), ascii(1))", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u03b1 1\n", "")
