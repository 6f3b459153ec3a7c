"""Optimality gap of the planners against brute force, on small random problems.

Tables I and II (LLaMA-1.1B drafts, LLaMA-7B verifies), window 4. α, O_max (up to 32), inputs (up to 512) and the
memory, which fits between one and all tasks, are random. Brute force evaluates eqs. 17 to 22 for all runs of the tasks
sorted by input, in all orders; tests/optim/test_batching.py shows that other batches are no faster.

Run: python benchmarks/planner_gap.py [--tasks K] [--cells N] [--seed S] [--json] [--csv FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from testbed.experiments.results.csv_file import write_csv
from testbed.optim.figures import COST, MODELS
from testbed.optim.inference_cost import IntArray, ServedPair, cache_bytes, inference_s, parameter_bytes
from testbed.optim.planner import plan_batches

WINDOW = 4
DRAFT, VERIFY = MODELS["LLaMA-1.1B"], MODELS["LLaMA-7B"]
EQUAL = 1e-9


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--csv", type=Path, help="file of rows, one per cell")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    gaps: dict[str, list[float]] = {"dp": [], "best": []}
    for _ in range(arguments.cells):
        serving, inputs = drawn(rng, arguments.tasks)
        least_s = brute_force(serving, inputs)
        for name, found in gaps.items():
            found.append(plan_batches(serving, inputs, name, WINDOW).inference_s / least_s - 1)
    if arguments.csv is not None:
        write_csv(arguments.csv, [{"cell": at, "tasks": arguments.tasks} | dict(zip(gaps, cell, strict=True))
                                  for at, cell in enumerate(zip(*gaps.values(), strict=True))])  # fmt: skip
    report = {name: figures(np.array(found)) for name, found in gaps.items()}
    if arguments.json:
        print(json.dumps({"tasks": arguments.tasks, "cells": arguments.cells, "seed": arguments.seed, **report}))
        return
    for name, row in report.items():
        print(
            f"{name:4}  above brute force in {row['above']:.0%} of {arguments.cells} cells of {arguments.tasks} tasks; "
            f"mean {row['mean']:.2%}, 95th percentile {row['p95']:.2%}, worst {row['worst']:.2%}"
        )


def figures(gaps: np.ndarray) -> dict[str, float]:
    """Statistics of the relative gaps."""
    return {
        "above": float(np.mean(gaps > EQUAL)), "mean": float(gaps.mean()), "p95": float(np.quantile(gaps, 0.95)),
        "worst": float(gaps.max()),
    }  # fmt: skip


def drawn(rng: np.random.Generator, tasks: int) -> tuple[ServedPair, IntArray]:
    """Random problem: pair and input lengths."""
    inputs = rng.integers(1, 513, tasks)
    output = int(rng.integers(8, 33))
    least = parameter_bytes(DRAFT) + cache_bytes(DRAFT, 1, int(inputs.max()), output)
    all_tasks = parameter_bytes(DRAFT) + cache_bytes(DRAFT, tasks, int(inputs.max()), output)
    serving = ServedPair(
        draft_model=DRAFT, verify_model=VERIFY, cost=COST, memory_bytes=float(rng.uniform(least, all_tasks)),
        max_output_tokens=output, alpha=float(rng.uniform(0.3, 0.95)), max_window=WINDOW,
    )  # fmt: skip
    return serving, inputs


def brute_force(serving: ServedPair, inputs: IntArray) -> float:
    """Least latency over all runs in all orders."""
    ordered = np.sort(inputs)
    return min(
        inference_s(serving, WINDOW, np.array(sizes), np.array(longest))
        for runs in cut(ordered.tolist())
        if all(fits(serving, size, longest) for size, longest in runs)
        for order in itertools.permutations(runs)
        for sizes, longest in [zip(*order, strict=True)]
    )


def cut(ordered: list[int]) -> Iterator[list[tuple[int, int]]]:
    """All partitions of sorted inputs into runs, as (size, longest input) of each."""
    for inner in itertools.product((False, True), repeat=len(ordered) - 1):
        ends = [at for at, ends in enumerate((*inner, True), 1) if ends]
        yield [(end - begin, ordered[end - 1]) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def fits(serving: ServedPair, size: int, longest: int) -> bool:
    """Whether a batch fits into the drafter's memory (eq. 10)."""
    held = parameter_bytes(DRAFT) + cache_bytes(DRAFT, size, longest, serving.max_output_tokens)
    return bool(held <= serving.memory_bytes)


if __name__ == "__main__":
    main()
