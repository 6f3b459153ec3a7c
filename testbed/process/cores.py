"""CPU cores that a UE and a base station on one machine share, and how long their threads poll for work.

UE and base station take turns: the UE's threads idle during a pass, the base station's while the UE drafts. Each takes
all cores but one, which is enough as long as idle threads sleep.
"""

from __future__ import annotations

import os

POLLS = 1000
"""How often an idle thread of GNU OpenMP looks for work before it sleeps: tens of microseconds. Its own 300,000 times
last for milliseconds, on cores that the other side needs by then."""


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def poll_briefly() -> None:
    """Let idle OpenMP threads sleep soon, unless the environment says how they wait.

    GNU OpenMP, which PyTorch and llama.cpp use on Linux, reads it when it is loaded.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = str(POLLS)
