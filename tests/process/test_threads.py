"""Threads that are started before they are needed."""

from __future__ import annotations

import subprocess
import sys
import threading

from testbed.process.threads import started_threads

SHORT_OF_MEMORY = """
import resource
from testbed.errors import TestbedError
from testbed.process.threads import started_threads

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, resource.RLIM_INFINITY))
try:
    started_threads(2, "x")
except TestbedError as exc:
    print(exc)
"""


def test_all_threads_run_at_once_and_no_other_is_started_later() -> None:
    before = threading.active_count()
    with started_threads(3, "waiting") as executor:
        running = [thread for thread in threading.enumerate() if thread.name.startswith("waiting")]
        assert len(running) == 3 and threading.active_count() == before + 3
        assert sorted(executor.map(abs, range(-20, 0))) == list(range(1, 21))
        assert threading.active_count() == before + 3
    assert threading.active_count() == before


def test_a_lack_of_threads_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("a thread cannot be started (can't start new thread): allow more processes")
    assert done.stdout.count("\n") == 1 and not done.stderr
