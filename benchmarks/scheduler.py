"""Time to plan a pass with 256 pending requests: SLO-aware scheduler and first come, first served.

Requests differ in class, length and age; some are new, some are late. The schedulers alternate in one run over the same
queues. Passes have at most 13 requests (WISP's Table 2), or any number.

Run: python benchmarks/scheduler.py [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import Pending
from testbed.bs.scheduling.base import Fcfs, Scheduler
from testbed.bs.scheduling.slo import Slo
from testbed.experiments.results import directory as results
from testbed.optim.pass_time import Coefficients

PENDING = 256
QUEUES = 50
TURNS = 8
NOW_S = 1000.0
A100 = Coefficients(a=3.314e-5, b_compute=3.450e-8, b_read=4.620e-6, c=1.486e-2)
"""WISP, Table 12."""


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = {"host": results.host(), "pending": PENDING, "rows": [measure(13), measure(PENDING)]}
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['host']['cpu']}, {report['host']['cores']} cores; {PENDING} pending, {QUEUES * TURNS} plans each")
    for row in report["rows"]:
        for name in ("fcfs", "slo"):
            found = row[name]
            times = f"p50 {found['p50_ms']:.3f} ms, p95 {found['p95_ms']:.3f} ms"
            print(f"passes of {row['max_requests']:3}: {name:4} {times}")


def measure(max_requests: int) -> dict[str, Any]:
    """Milliseconds per plan, by scheduler."""
    schedulers: dict[str, Scheduler] = {
        "fcfs": Fcfs(max_requests, 10**6),
        "slo": Slo(coefficients=A100, max_requests=max_requests, max_tokens=10**6, kv_tokens=10**6),
    }
    queues = [_queue(seed) for seed in range(QUEUES)]
    taken: dict[str, list[float]] = {name: [] for name in schedulers}
    for turn in range(TURNS + 1):
        for queue in queues:
            for name, scheduler in schedulers.items():
                start_s = time.perf_counter()
                scheduler.plan(queue, NOW_S)
                if turn:
                    taken[name].append((time.perf_counter() - start_s) * 1e3)
    return {"max_requests": max_requests, **{name: _summary(times) for name, times in taken.items()}}


def _summary(times_ms: Sequence[float]) -> dict[str, float]:
    return {"p50_ms": statistics.median(times_ms), "p95_ms": statistics.quantiles(times_ms, n=20)[-1]}


def _queue(seed: int) -> list[Pending]:
    rng = np.random.default_rng(seed)
    queue = []
    for i in range(PENDING):
        prefix, new = int(rng.integers(50, 800)), rng.random() < 0.05
        request = VerifyRequest(f"ue/{i}", np.zeros(prefix, np.int32), np.zeros(int(rng.integers(0, 6)), np.int32))
        queue.append(
            Pending(
                request,
                NOW_S - float(rng.uniform(0, 0.5)),
                0 if new else prefix - 1,
                float(rng.choice([2, 4, 6, 8])),
                float(rng.uniform(0.02, 0.1)),
                float(rng.uniform(0.02, 0.06)),
            )
        )
    return queue


if __name__ == "__main__":
    main()
