"""Python processes that this one starts: they run the same package, and no modules of the current directory.

`python -m` and `python -c` look there first, and it may be a directory of results that somebody else made.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

SAFE = "PYTHONSAFEPATH"
"""Environment variable by which Python leaves the current directory out of the path of modules, since version 3.11."""
ROOT = str(Path(__file__).resolve().parents[2])
"""Folder of this package."""
LAUNCHER = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
    "root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""What `python -m` does, without the current directory: Python 3.10 has no option for that."""


def module_command(module: str, *arguments: str) -> list[str]:
    """Command line that runs a module as `python -m` does, under this interpreter."""
    return [sys.executable, "-c", LAUNCHER, ROOT, module, *arguments]


def keep_path_safe() -> None:
    """Keep the current directory out of the path of all Python processes below this one, those of libraries and of
    `multiprocessing` included; Python 3.10 knows no such setting.
    """
    os.environ[SAFE] = "1"


def is_stopped(pid: int) -> bool:
    """Whether a process has been stopped (SIGSTOP, SIGTSTP), as far as Linux tells."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return stat.rpartition(")")[2].split()[:1] == ["T"]


def end_first(pid: int) -> None:
    """Let the kernel end this process rather than others when memory runs out, as far as Linux can be told."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("500")


def signal_name(number: int) -> str:
    """Name of a signal; most of the real-time ones have none."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
