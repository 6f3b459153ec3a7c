"""Standard streams of a process."""

from __future__ import annotations

import contextlib
import io
import os
import select
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


def stderr_waits() -> bool:
    """Whether a line on stderr would keep an event loop waiting, which serves others meanwhile: its terminal is stopped
    (Ctrl-S), or nobody reads its pipe. Outside of event loops a line may wait.
    """
    asyncio = sys.modules.get("asyncio")  # most commands begin without it
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
        number = sys.stderr.fileno()
    except (RuntimeError, OSError, ValueError, AttributeError):
        return False
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return not poll.poll(0)
