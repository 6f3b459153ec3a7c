"""Run time of the planners for K tasks, compared with Algorithm 1 as printed, in plain NumPy.

Tables I and II (LLaMA-1.1B drafts, LLaMA-7B verifies, 16 GB), α = 0.8, O_max = 2048, inputs from 1 to 512, all windows
up to 10. The plain implementation loops over boundaries, with the steps as arrays, and skips batches that do not fit;
at 10,000 tasks it is timed at two windows and extrapolated to ten by the number of steps. Unlimited memory, where every
boundary is possible, is the hardest case, timed for planner `best` only.

Run: python benchmarks/planner.py [--json] [--csv FILE]
"""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
from support.commands import command_line, write_rows

from testbed.experiments.results import directory as results
from testbed.optim.figures import COST, MODELS
from testbed.optim.inference_cost import (
    IntArray,
    ServedPair,
    cache_bytes,
    draft_s,
    parameter_bytes,
    steps_needed,
    verify_s,
)
from testbed.optim.planner import plan_batches

SIZES = (100, 1_000, 10_000)
WINDOWS = range(1, 11)
FEW_WINDOWS = (1, 10)
"""Windows of the plain planner at the largest size."""
TARGET_S = {100: 0.25, 1_000: 3.0, 10_000: 60.0}
TURNS = {100: 5, 1_000: 3, 10_000: 1}
UNLIMITED_BYTES = 1e15


def main() -> None:
    """Run the benchmark and print the results."""
    arguments = command_line(__doc__).parse_args()
    report = {"host": results.host(), "rows": [measured(size) for size in SIZES]}
    if arguments.csv is not None:
        write_rows(arguments.csv, report["rows"])
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['host']['cpu']}, {report['host']['cores']} cores, one used")
    for row in report["rows"]:
        print(
            f"K {row['tasks']:6}  dp {row['dp_s']:7.3f} s  best {row['best_s']:7.3f} s (allowed {row['target_s']:g})  "
            f"without memory limit {row['unlimited_s']:7.3f} s  plain {row['plain_s']:8.2f} s: "
            f"{row['plain_over_dp']:.0f}x dp, {row['plain_over_best']:.1f}x best  "
            f"latency best/dp {row['latency_ratio']:.4f}"
        )


def measured(tasks: int) -> dict[str, Any]:
    """Seconds of all planners for `tasks` tasks."""
    inputs = np.random.default_rng(tasks).integers(1, 513, tasks)
    dp_s, paper = timed(serving(16e9), inputs, "dp", TURNS[tasks])
    best_s, ours = timed(serving(16e9), inputs, "best", TURNS[tasks])
    unlimited_s, _ = timed(serving(UNLIMITED_BYTES), inputs, "best", 1)
    plain_s, latency_s = plain_seconds(tasks, inputs)
    if not math.isinf(latency_s) and not math.isclose(latency_s, paper, rel_tol=1e-9):
        raise RuntimeError(f"the planners disagree on Algorithm 1: {latency_s} and {paper}")
    return {
        "tasks": tasks, "dp_s": dp_s, "best_s": best_s, "target_s": TARGET_S[tasks], "unlimited_s": unlimited_s,
        "plain_s": plain_s, "plain_over_dp": plain_s / dp_s, "plain_over_best": plain_s / best_s,
        "latency_ratio": ours / paper,
    }  # fmt: skip


def serving(memory_bytes: float) -> ServedPair:
    """Pair of Tables I and II."""
    return ServedPair(
        draft_model=MODELS["LLaMA-1.1B"], verify_model=MODELS["LLaMA-7B"], cost=COST,
        memory_bytes=memory_bytes, max_output_tokens=2048, alpha=0.8, max_window=WINDOWS[-1],
    )  # fmt: skip


def timed(given: ServedPair, inputs: IntArray, algorithm: str, turns: int) -> tuple[float, float]:
    """Minimum seconds over `turns` runs, and the latency of the plan."""
    seconds = []
    for _ in range(turns):
        start_s = time.perf_counter()
        latency_s = plan_batches(given, inputs, algorithm).inference_s
        seconds.append(time.perf_counter() - start_s)
    return min(seconds), latency_s


def plain_seconds(tasks: int, inputs: IntArray) -> tuple[float, float]:
    """Seconds of the plain planner over all windows, and the least latency (infinite if not all were tried)."""
    given, chosen = serving(16e9), WINDOWS if tasks < SIZES[-1] else FEW_WINDOWS
    start_s = time.perf_counter()
    latency_s = min(plain(given, inputs, window) for window in chosen)
    spent_s = time.perf_counter() - start_s
    if len(chosen) == len(WINDOWS):
        return spent_s, latency_s
    steps = {window: steps_needed(given.max_output_tokens, given.alpha, window) for window in WINDOWS}
    return spent_s * sum(steps.values()) / sum(steps[window] for window in chosen), math.inf


def plain(given: ServedPair, inputs: IntArray, window: int) -> float:
    """Algorithm 1 with the errata's corrections, line by line; returns Υ[K, 0, 0]."""
    ordered = np.sort(inputs)
    steps = np.arange(1, steps_needed(given.max_output_tokens, given.alpha, window) + 1)
    first = np.zeros((len(ordered) + 1, steps.size))
    second = np.zeros((len(ordered) + 1, steps.size))
    weights = parameter_bytes(given.draft_model)
    least = 0.0
    for i in range(1, len(ordered) + 1):
        longest = int(ordered[i - 1])
        # eqs. 18 and 19 are linear in the size: evaluated once per row, or they would dominate the run time
        drafting, verifying = (
            stage(given, np.array([0, 1]), longest, steps[:, None], window) for stage in (draft_s, verify_s)
        )
        least, best = math.inf, 0
        for j in range(i, 0, -1):
            size = i - j + 1
            if weights + cache_bytes(given.draft_model, size, longest, given.max_output_tokens) > given.memory_bytes:
                break  # larger ones do not fit either
            drafted = drafting[:, 0] + size * (drafting[:, 1] - drafting[:, 0])
            verified = verifying[:, 0] + size * (verifying[:, 1] - verifying[:, 0])
            total = float((np.maximum(first[j - 1] + drafted, second[j - 1]) + verified).sum())
            if total < least:
                least, best = total, j
        size = i - best + 1
        first[i] = first[best - 1] + drafting[:, 0] + size * (drafting[:, 1] - drafting[:, 0])
        second[i] = (
            np.maximum(first[i], second[best - 1]) + verifying[:, 0] + size * (verifying[:, 1] - verifying[:, 0])
        )
    return least


if __name__ == "__main__":
    main()
