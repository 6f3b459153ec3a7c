"""Standard streams that are closed, or cannot encode what is written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pty
import subprocess
import sys
import time
import tty

import pytest

from testbed.cli.output import note
from testbed.process.logs import configure
from testbed.process.streams import stderr_waits

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


async def noted(text: str) -> bool:
    """Write a line and a warning to stderr within an event loop; whether they would have waited."""
    waits = stderr_waits()
    note(text)
    logging.getLogger("testbed.tests").warning(text)
    return waits


@pytest.mark.parametrize("terminal", [True, False])
def test_an_event_loop_waits_for_no_terminal_that_is_stopped(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-S on its terminal, a base station stood still from its next status line on."""
    near, far = pty.openpty() if terminal else os.pipe()
    if terminal:
        tty.setcbreak(far)
    else:
        os.set_blocking(far, False)
    before = logging.getLogger("testbed").handlers[:]
    with os.fdopen(far, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        configure()
        assert not asyncio.run(noted("first"))
        if terminal:
            os.write(near, b"\x13")
        else:
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(far, b"x" * 4096)
            os.set_blocking(far, True)
        time.sleep(0.1)
        assert asyncio.run(noted("second")) and not stderr_waits()
        if terminal:
            os.write(near, b"\x11")
        said = os.read(near, 65536)
        assert b"first" in said and b"second" not in said
        monkeypatch.undo()
    logging.getLogger("testbed").handlers[:] = before
    os.close(near)
