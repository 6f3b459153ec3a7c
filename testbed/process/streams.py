"""Standard streams of a process."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys

_cut = False
"""Whether the end of the last line could not be written, so that the next one begins a line."""


def open_streams() -> None:
    """Open standard streams that the parent has closed on /dev/null, before other files take their numbers, and let
    characters that stdout cannot encode be escaped instead of raising an error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        with contextlib.suppress(OSError):
            os.close(number)
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)
        setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def write_stderr(text: str) -> None:
    """Write text to stderr. Within an event loop, which serves others meanwhile, what would have to wait is lost: the
    terminal is stopped (Ctrl-S) or hangs, or nobody reads the pipe.

    Raises:
        OSError, ValueError: stderr is closed, or its disk is full.
    """
    asyncio = sys.modules.get("asyncio")  # most commands begin without it
    if asyncio is not None:
        with contextlib.suppress(RuntimeError, OSError, ValueError, AttributeError):
            asyncio.get_running_loop()
            number = sys.stderr.fileno()
            kind = os.fstat(number).st_mode
            if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(number):
                _write_at_once(number, text.encode(errors="backslashreplace"))
                return
    sys.stderr.write(text)
    sys.stderr.flush()


def _write_at_once(number: int, content: bytes) -> None:
    """Write what a terminal, pipe or socket takes at once. Other processes may rely on waiting, so that it is opened
    again for that; a terminal of another user, which cannot be, does not wait for the moment.

    Raises:
        OSError: it is closed.
    """
    global _cut
    own = None
    with contextlib.suppress(OSError):
        own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    waits = own is None and os.get_blocking(number)
    try:
        if waits:
            os.set_blocking(number, False)
        with contextlib.suppress(BlockingIOError):
            content = b"\n" * _cut + content
            while content:
                content = content[os.write(number if own is None else own, content) :]
                _cut = bool(content)
    finally:
        if waits:
            os.set_blocking(number, True)
        if own is not None:
            os.close(own)
