"""Standard streams that are closed, or cannot encode what is written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pty
import socket
import subprocess
import sys
import time
import tty
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.cli.output import note
from testbed.process import streams
from testbed.process.logs import configure

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


async def noted(text: str, size: int = 0) -> None:
    """Write a line and a warning to stderr within an event loop."""
    note(text)
    logging.getLogger("testbed.tests").warning("%s of %s", text, "x" * size)


def read_all(near: int) -> bytes:
    os.set_blocking(near, False)
    said = b""
    with contextlib.suppress(OSError):
        while found := os.read(near, 65536):
            said += found
    return said


@contextlib.contextmanager
def stderr(terminal: bool) -> Iterator[tuple[int, int]]:
    """A terminal or pipe as stderr: the other end, and its own."""
    near, far = pty.openpty() if terminal else os.pipe()
    if terminal:
        tty.setcbreak(far)
    handlers, before = logging.getLogger("testbed").handlers[:], sys.stderr
    with os.fdopen(far, "w") as stream:
        sys.stderr = stream
        configure()
        try:
            yield near, far
        finally:
            sys.stderr = before
            logging.getLogger("testbed").handlers[:] = handlers
            read_all(near)  # closing waits for what is written
    os.close(near)


def fill(far: int) -> None:
    own = os.open(f"/proc/self/fd/{far}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    for size in (4096, 64, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(own, b"." * size)
    os.close(own)


@pytest.fixture(params=[True, False], ids=["", "of another user"])
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of another user's cannot be opened again."""
    opened = os.open

    def refused(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if str(path).startswith("/proc/self/fd/") and sys._getframe(1).f_globals is streams.__dict__:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *more, **options)

    if not request.param:
        monkeypatch.setattr(os, "open", refused)


@pytest.mark.usefixtures("own")
def test_an_event_loop_waits_for_no_terminal_that_is_stopped() -> None:
    """After Ctrl-S on its terminal, a base station stood still from its next status line on."""
    with stderr(terminal=True) as (near, _):
        asyncio.run(noted("first"))
        os.write(near, b"\x13")
        time.sleep(0.1)
        asyncio.run(noted("second"))
        os.write(near, b"\x11")
        time.sleep(0.1)
        asyncio.run(noted("third"))
        time.sleep(0.1)
        said = read_all(near)
    assert b"first of" in said and b"third of" in said and b"second" not in said


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("read", [0, 100, 5000])
@pytest.mark.parametrize("terminal", [True, False])
def test_nor_for_one_that_nobody_reads(read: int, terminal: bool) -> None:
    """A terminal takes a line in part: one byte of room was enough to wait for the rest."""
    with stderr(terminal) as (near, far):
        fill(far)
        if read:
            os.read(near, read)
        asyncio.run(noted("second", 50_000))
        assert os.get_blocking(far)
        assert b"x" * 50_000 not in read_all(near)


def test_nor_for_a_socket_that_nobody_reads() -> None:
    """As that of a supervisor: a base station stood still."""
    near, far = socket.socketpair()
    before, streams._cut = sys.stderr, False
    with near, os.fdopen(far.detach(), "w") as stream:
        sys.stderr = stream
        try:
            asyncio.run(noted("first"))
            for _ in range(10):
                asyncio.run(noted("more", 100_000))
            assert near.recv(5) == b"first" and os.get_blocking(stream.fileno())
            near.close()
        finally:
            sys.stderr = before


def test_a_line_that_was_cut_is_not_continued_by_the_next() -> None:
    """Both were unreadable, as JSON for example."""
    with stderr(terminal=False) as (near, far):
        fill(far)
        os.read(near, 8192)
        asyncio.run(noted("second", 50_000))
        read_all(near)
        asyncio.run(noted("third"))
        assert read_all(near).startswith(b"\nthird")
