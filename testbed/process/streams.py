"""Standard streams of a process."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys


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
            if stat.S_ISFIFO(os.fstat(number).st_mode) or os.isatty(number):
                _write_at_once(number, text.encode(errors="backslashreplace"))
                return
    sys.stderr.write(text)
    sys.stderr.flush()


def _write_at_once(number: int, content: bytes) -> None:
    """Write what a terminal or pipe takes at once, by a descriptor of its own: others of it may rely on waiting.

    Raises:
        OSError: it cannot be opened again.
    """
    own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        with contextlib.suppress(BlockingIOError):
            while content:
                content = content[os.write(own, content) :]
    finally:
        os.close(own)
