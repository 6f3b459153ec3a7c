"""Tokens/s of a UE and a base station on one machine, by the threads that each gets and how OpenMP's threads wait.

    python benchmarks/cores.py [--json] [--csv FILE] [--engine vllm|llama] [--model NAME] [--prompts 5] [--tokens 48]
        [--bs-threads 1,2] [--ue-threads 1,2] [--waiting default,passive]

UE and base station are processes on loopback. The combinations take turns, prompt by prompt, in an order that is drawn
anew for each. `passive` is OMP_WAIT_POLICY=passive: threads sleep at once instead of polling first. Times of a
combination are compared with those of the first one, prompt by prompt: medians with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from support.commands import command_line, write_rows
from support.decoders import load, pair_of
from support.workers import Worker, answer, median

METHODS = ("target-only", "greedy")
Combination = tuple[int, int, str]
"""Threads of the base station, threads of the UE, and how threads wait."""
Way = tuple[str, Combination]


def main() -> int:
    """Measure all combinations in turn and print the rows."""
    if sys.argv[1:] == ["--worker"]:
        answer(load)
        return 0
    options = parse()
    document = run(options)
    if options.csv is not None:
        write_rows(options.csv, document["rows"])
    if options.json:
        print(json.dumps(document))
        return 0
    print(f"{'method':12} {'BS':>3} {'UE':>3} {'waiting':8} {'tokens/s':>9} {'speedup':>8}  95 %")
    for row in document["rows"]:
        value, low, high = row["speedup"]
        print(
            f"{row['method']:12} {row['bs_threads']:3} {row['ue_threads']:3} {row['waiting']:8} "
            f"{row['tokens_per_s']:9.1f} {value:8.2f}  {low:.2f} to {high:.2f}"
        )
    return 0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    most = os.cpu_count() or 1
    less = max(1, most - 1)
    usual = [(less, less, "testbed"), *((most, most, waiting) for waiting in ("testbed", "openmp", "passive"))]
    parser = command_line(__doc__)
    parser.add_argument("--engine", default="vllm", choices=("vllm", "llama"))
    parser.add_argument("--compiled", action="store_true", help="vLLM's compiled mode")
    parser.add_argument("--model", help="name of a fetched model; default: the bundled pair")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--combinations", type=combinations, default=usual)
    return parser.parse_args()


def combinations(text: str) -> list[Combination]:
    """Parse combinations separated by commas."""
    parts = [one.split(":") for one in text.split(",")]
    return [(int(bs), int(ue), waiting) for bs, ue, waiting in parts]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Load all combinations, and let each decode every prompt by both methods."""
    from testbed.bs.engines.target import describe
    from testbed.experiments.inputs.datasets import load_dataset
    from testbed.experiments.results.directory import host
    from testbed.ue.prompts import Prompter

    os.environ.pop("OMP_NUM_THREADS", None)
    pair = pair_of(options.model)
    target = describe(pair.target)
    prompter = Prompter(target.path)
    prompts = [prompter.ids(e.question) for e in load_dataset("bundled:test", options.prompts + 1)]
    common = {"engine": options.engine, "compiled": options.compiled}
    workers: dict[Combination, Worker] = {}
    try:
        for bs, ue, waiting in options.combinations:
            what = common | {"bs_threads": bs, "ue_threads": ue, "waiting": waiting}
            question = {"system": "testbed", "pair": list(pair), "options": what}
            workers[bs, ue, waiting] = Worker(__file__, question)
        found = decode_all(workers, prompts, {"tokens": options.tokens, "ends": list(target.end_ids)})
    finally:
        for worker in workers.values():
            worker.close()
    about = {"model": options.model or "bundled", "prompts": options.prompts, "tokens": options.tokens}
    return {"host": host(), **about, **common, "rows": rows_of(found)}


def decode_all(
    workers: Mapping[Combination, Worker], prompts: Sequence[list[int]], how: Mapping[str, Any]
) -> dict[Way, list[dict[str, Any]]]:
    """Outputs and seconds by method and combination, in the order of prompts; the last prompt warms up."""
    ways: list[Way] = list(itertools.product(METHODS, workers))
    found: dict[Way, list[dict[str, Any]]] = {way: [] for way in ways}
    rng = random.Random(0)
    for ids in [prompts[-1], *prompts[:-1]]:
        for method, combination in rng.sample(ways, len(ways)):
            found[method, combination].append(workers[combination].ask(ids=ids, method=method, **how))
    return {way: outputs[1:] for way, outputs in found.items()}


def rows_of(found: Mapping[Way, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row per method and combination; speedups are those over the method's first combination."""
    first: dict[str, Sequence[dict[str, Any]]] = {}
    rows = []
    for (method, (bs, ue, waiting)), outputs in found.items():
        reference = first.setdefault(method, outputs)
        speedup = median([one["s"] / other["s"] for one, other in zip(reference, outputs, strict=True)])
        speed = sum(len(one["ids"]) for one in outputs) / sum(one["s"] for one in outputs)
        rows.append({
            "method": method, "bs_threads": bs, "ue_threads": ue, "waiting": waiting, "tokens_per_s": speed,
            "speedup": list(speedup),
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main())
