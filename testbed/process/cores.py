"""CPU cores that a UE and a base station on one machine share, and how long their threads poll for work.

UE and base station take turns: the UE's threads idle during a pass, the base station's while the UE drafts. Each takes
all cores but one. Where its model is large it takes both of two cores: passes then last so long that waits for a core
cost less than the second one brings. Idle threads must sleep.
"""

from __future__ import annotations

import os

POLLS = 1000
"""How often an idle thread of GNU OpenMP looks for work before it sleeps: tens of microseconds. Its own 300,000 times
last for milliseconds, on cores that the other side needs by then."""

LARGE_BYTES = 64 << 20
"""Size of the weights from which a model is large: reading them takes some milliseconds a pass."""


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def model_threads(weights_bytes: int) -> int:
    """Threads of an engine or a drafter by the size of its weights, where nothing else is said."""
    cores = available_cores()
    return max(min(cores, 2) if weights_bytes >= LARGE_BYTES else 1, cores - 1)


def poll_briefly() -> None:
    """Let idle OpenMP threads sleep soon, unless the environment says how they wait.

    GNU OpenMP, which PyTorch and llama.cpp use on Linux, reads it when it is loaded.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = str(POLLS)
