"""Latency of the rejection predictors compared with a draft step of the bundled drafter.

Each drafted token is followed by one call of each bundled predictor on that token, so that all run under the same
conditions. A draft step is a llama.cpp pass plus the statistics of its logits.

Run: python benchmarks/predictor.py [--prompts N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.predictor.train import load_families
from testbed.experiments.results import directory as results
from testbed.models.bundle import bundled
from testbed.ue.llama.drafter import LlamaDrafter
from testbed.ue.prompts import Prompter

WINDOW = 8
ROUNDS = 20
"""Rounds per prompt; each commits its drafted tokens."""
WARM_UP = 50


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = {"host": results.host(), "rows": measure(arguments.prompts)}
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['host']['cpu']}, {report['host']['cores']} cores; {report['rows'][0]['calls']} calls each")
    print("what           p50 us    p95 us    p99 us  share of a draft step (p50)")
    for row in report["rows"]:
        times = "  ".join(f"{row[f'{p}_us']:8.1f}" for p in ("p50", "p95", "p99"))
        print(f"{row['what']:12} {times}  {row['share']:.4f}")


def measure(prompts: int) -> list[dict[str, Any]]:
    """Microseconds per draft step and per call of each predictor."""
    bundle = bundled()
    prompter = Prompter(bundle.require("tokenizer"))
    ids = [prompter.ids(e.question) for e in load_dataset("bundled:test", prompts)]
    longest = max(map(len, ids))
    drafter = LlamaDrafter(
        bundle.require("drafter"), prompter.vocab_size, context=longest + ROUNDS * (WINDOW + 1), sequences=1
    )
    predictors = load_families(bundle.require("predictor"))
    taken: dict[str, list[float]] = {name: [] for name in ("draft step", *predictors)}
    try:
        for prompt in ids:
            sequence = drafter.open(prompt)
            for _ in range(ROUNDS):
                for position in range(1, WINDOW + 1):
                    start_s = time.perf_counter()
                    token = sequence.draft_one()
                    taken["draft step"].append(time.perf_counter() - start_s)
                    for name, predictor in predictors.items():
                        start_s = time.perf_counter()
                        predictor.accept_probability(token, position)
                        taken[name].append(time.perf_counter() - start_s)
                sequence.commit(WINDOW - 1, token.id)
            sequence.close()
    finally:
        drafter.close()
    step_s = statistics.median(taken["draft step"][WARM_UP:])
    return [_row(name, times[WARM_UP:], step_s) for name, times in taken.items()]


def _row(name: str, times_s: Sequence[float], step_s: float) -> dict[str, Any]:
    cuts = statistics.quantiles(times_s, n=100)
    median_s = statistics.median(times_s)
    return {
        "what": name,
        "calls": len(times_s),
        "p50_us": median_s * 1e6,
        "p95_us": cuts[94] * 1e6,
        "p99_us": cuts[98] * 1e6,
        "share": median_s / step_s,
    }


if __name__ == "__main__":
    main()
