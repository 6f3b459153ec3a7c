"""CPU time of capacity runs: seconds of one core per 60 s of virtual time with 200 UEs, by system.

Session, codec and server are the same code as in real runs, so the times include their cost.

Run: python benchmarks/capacity.py [--ues N] [--systems NAME …] [--json]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from testbed.experiments.capacity.config import CapacityConfig
from testbed.experiments.capacity.run import run_capacity
from testbed.experiments.capacity.systems import SYSTEMS
from testbed.experiments.results import directory as results

VIRTUAL_S = 60.0
SPEED_TPS = 8.0


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ues", type=int, default=200)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(name, arguments.ues) for name in arguments.systems]
    if arguments.json:
        print(json.dumps({"host": results.host(), "rows": rows}))
        return
    print(f"{arguments.ues} UEs, {VIRTUAL_S:g} s of virtual time, one core")
    for row in rows:
        each_us = f"{row['round_us']:.0f} us per round"
        print(
            f"{row['system']:15} {row['cpu_s']:6.2f} s, {row['rounds_per_s']:.0f} rounds per virtual second, {each_us}"
        )


def measure(system: str, ues: int) -> dict[str, Any]:
    """CPU time of a run, scaled to `VIRTUAL_S`."""
    config = CapacityConfig(
        kv_tokens=120_000
    )  # enough for 200 UEs without evictions, which would reduce the number of rounds
    run = run_capacity(config, SYSTEMS[system], (SPEED_TPS,) * ues, 0, until="clear")
    cpu_s = run.cpu_s * VIRTUAL_S / run.virtual_s
    rounds_per_s = run.rounds / config.horizon_s
    return {
        "system": system, "ues": ues, "cpu_s": cpu_s, "rounds_per_s": rounds_per_s,
        "round_us": 1e6 * cpu_s / (rounds_per_s * VIRTUAL_S),
    }  # fmt: skip


if __name__ == "__main__":
    main()
