"""Gain of each part of planner `best` over Algorithm 1, at sizes beyond brute force; all windows up to 10.

Cells "paper" are Tables I and II (LLaMA-1.1B drafts, LLaMA-7B verifies, 16 GB, α = 0.8, O_max = 2048, inputs up to
512); cells "random" are those of `planner_gap.py`. `order` is Algorithm 1 with its batches in the order of Johnson's
rule, `best` adds local search. Intervals are Student's t over cells.

Run: python benchmarks/planner_gain.py [--tasks 12,30,100] [--cells N] [--json]
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from typing import Any

import msgspec
import numpy as np
from planner_gap import DRAFT, VERIFY, drawn

from testbed.intervals import repeats_interval
from testbed.optim.figures import COST
from testbed.optim.inference_cost import IntArray, ServedPair
from testbed.optim.planner import plan_batches
from testbed.optim.search import BatchOrder, best_arranged
from testbed.optim.solvers import SOLVERS, paper
from testbed.optim.stages import Stages


def ordered(stages: Stages, limit_s: float = np.inf) -> BatchOrder:
    """Algorithm 1, its batches in the order of Johnson's rule where that is faster."""
    first = paper(stages)
    return best_arranged(stages, first.boundaries[None], first.latency_s) or first


PLANNERS = {"dp": SOLVERS["dp"], "order": ordered, "best": SOLVERS["best"]}


def main() -> None:
    """Run the benchmark and print its rows as CSV, or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="12,30,100,300,1000")
    parser.add_argument("--cells", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    SOLVERS.update(PLANNERS)
    rows = [
        row
        for kind in ("paper", "random")
        for tasks in map(int, arguments.tasks.split(","))
        for row in measured(kind, tasks, arguments.cells)
    ]
    if arguments.json:
        print(json.dumps({"rows": rows}))
        return
    table = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)


def measured(kind: str, tasks: int, cells: int) -> list[dict[str, Any]]:
    """A row for each planner but Algorithm 1: gain in percent over cells, and CPU time of a plan."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in PLANNERS}
    for seed in range(cells):
        serving, inputs = cell(kind, np.random.default_rng([seed, tasks]), tasks)
        for name, each in found.items():
            begin_s = time.process_time()
            latency_s = plan_batches(serving, inputs, name).inference_s
            each.append((latency_s, time.process_time() - begin_s))
    paper_s = np.array(found.pop("dp"))[:, 0]
    rows = []
    for name, each in found.items():
        gains = 100 * (1 - np.array(each)[:, 0] / paper_s)
        mean = repeats_interval(gains)
        rows.append({
            "cells": kind, "tasks": tasks, "n": cells, "planner": name, "gain_percent": round(mean.value, 3),
            "low": round(mean.low, 3), "high": round(mean.high, 3), "least": round(float(gains.min()), 3),
            "most": round(float(gains.max()), 3), "cpu_s": round(float(np.mean(np.array(each)[:, 1])), 3),
        })  # fmt: skip
    return rows


def cell(kind: str, rng: np.random.Generator, tasks: int) -> tuple[ServedPair, IntArray]:
    """Pair and input lengths."""
    if kind == "random":
        serving, inputs = drawn(rng, tasks)
        return msgspec.structs.replace(serving, max_window=10), inputs
    serving = ServedPair(
        draft_model=DRAFT, verify_model=VERIFY, cost=COST, memory_bytes=16e9, max_output_tokens=2048, alpha=0.8,
        max_window=10,
    )  # fmt: skip
    return serving, rng.integers(1, 513, tasks)


if __name__ == "__main__":
    main()
