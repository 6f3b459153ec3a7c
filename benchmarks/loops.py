"""Time of a joint decision about radio weights, windows and modes, and how near it comes to the optimum.

Time: random cells of 50 and 200 UEs, with greedy, FH and SH to choose from and windows of 0 (the base
station decodes alone) to 8 tokens. Optimum: brute force on cells of up to 5 UEs, over all combinations of choices and
shares in steps of 1/200; the code is that of the tests (`tests/optim/loops/cells.py`).

Run from the repository: PYTHONPATH=. python benchmarks/loops.py [--json] [--cells N] [--csv FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.experiments.results import directory as results
from testbed.experiments.results.csv_file import write_csv
from testbed.optim.loops.joint import decide
from testbed.optim.loops.objectives import OBJECTIVES
from testbed.optim.loops.state import CellState, Measured, UeState
from tests.optim.loops.cells import A100, brute_force, modes, random_cell

TURNS = 30
MOST = 5
"""UEs of a cell whose optimum is known."""


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cells", type=int, default=200, help="small cells for each objective")
    parser.add_argument("--csv", type=Path, help="file of the small cells")
    arguments = parser.parse_args()
    times = [timed(kind, ues) for kind in OBJECTIVES for ues in (50, 200)]
    cells = [small(kind, seed) for kind in OBJECTIVES for seed in range(arguments.cells)]
    if arguments.csv is not None:
        write_csv(arguments.csv, cells)
    gaps = [gap(kind, [row["share"] for row in cells if row["objective"] == kind]) for kind in OBJECTIVES]
    report = {"host": results.host(), "times": times, "gaps": gaps}
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['host']['cpu']}, {report['host']['cores']} cores")
    for row in times:
        print(f"{row['objective']:8} {row['ues']:4} UEs: p50 {row['p50_ms']:.2f} ms, p95 {row['p95_ms']:.2f} ms")
    for row in gaps:
        shares = ", ".join(f"{name} {row[name]:.3f}" for name in ("least", "p5", "median"))
        print(f"{row['objective']:8} {row['cells']} cells of up to {MOST} UEs, share of the optimum: {shares}")


def timed(kind: str, ues: int) -> dict[str, Any]:
    """Milliseconds per decision, each about another cell."""
    taken = []
    for turn in range(-2, TURNS):
        cell = large_cell(np.random.default_rng([ues, turn + 2]), ues)
        start_s = time.perf_counter()
        decide(cell, OBJECTIVES[kind])
        if turn >= 0:
            taken.append((time.perf_counter() - start_s) * 1e3)
    p95 = statistics.quantiles(taken, n=20)[-1]
    return {"objective": kind, "ues": ues, "p50_ms": statistics.median(taken), "p95_ms": p95}


def large_cell(rng: np.random.Generator, ues: int) -> CellState:
    """A cell whose UEs differ; a third of them have a promise. They have data in a tenth of the time."""
    measured = Measured(pass_s=0.05, sending=0.1 * ues)
    return CellState([_ue(rng) for _ in range(ues)], A100, waits=1.25, measured=measured)


def _ue(rng: np.random.Generator) -> UeState:
    return UeState(
        rate_bps=float(10 ** rng.uniform(6, 8)), draft_s=float(rng.uniform(0.003, 0.03)),
        link_s=float(rng.uniform(0.002, 0.03)), modes=modes(float(rng.uniform(0.5, 0.95))), windows=(0, 8),
        speed_tps=float(rng.uniform(2, 8)) if rng.random() < 1 / 3 else None,
        weight=float(rng.uniform(0.5, 2)), cached=float(rng.uniform(50, 400)),
    )  # fmt: skip


def small(kind: str, seed: int) -> dict[str, Any]:
    """Decision and optimum of a small cell; the share is of the goodput, or of the geometric mean of the speeds."""
    rng = np.random.default_rng(seed)
    ues = int(rng.integers(1, MOST + 1))
    cell = random_cell(rng, ues, least=0, measured=seed % 2 == 1)
    value, best = decide(cell, OBJECTIVES[kind]).value, brute_force(cell, kind)
    share = math.exp((value - best) / ues) if kind == "fair" else value / best
    return {"objective": kind, "seed": seed, "ues": ues, "value": value, "optimum": best, "share": share}


def gap(kind: str, shares: Sequence[float]) -> dict[str, Any]:
    """Distribution of the shares of the optimum."""
    least, p5, median = np.quantile(shares, [0.0, 0.05, 0.5]).tolist()
    return {"objective": kind, "cells": len(shares), "least": least, "p5": p5, "median": median}


if __name__ == "__main__":
    main()
