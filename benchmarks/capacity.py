"""How fast capacity runs are: seconds of one core for 60 s of virtual time with 200 UEs, by system.

All parts of a round are the ones that serve for real, so that this is also what session, codec and server cost.

Run: python benchmarks/capacity.py [--ues N] [--systems NAME …] [--json]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from testbed.experiments.capacity.run import run_capacity
from testbed.experiments.capacity.systems import SYSTEMS, CapacityConfig
from testbed.experiments.results import directory as results

VIRTUAL_S = 60.0
SPEED_TPS = 8.0


def main() -> None:
    """Measure and print."""
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
        each_us = f"{row['round_us']:.0f} us a round"
        print(f"{row['system']:15} {row['cpu_s']:6.2f} s, {row['rounds_per_s']:.0f} rounds a virtual second, {each_us}")


def measure(system: str, ues: int) -> dict[str, Any]:
    """Processor time of the share of a run that `VIRTUAL_S` is."""
    config = CapacityConfig(kv_tokens=120_000)  # for 200 UEs without evictions, which would make rounds fewer
    run = run_capacity(config, SYSTEMS[system], (SPEED_TPS,) * ues, 0, until="clear")
    cpu_s = run.cpu_s * VIRTUAL_S / run.virtual_s
    rounds_per_s = run.rounds / config.horizon_s
    return {
        "system": system, "ues": ues, "cpu_s": cpu_s, "rounds_per_s": rounds_per_s,
        "round_us": 1e6 * cpu_s / (rounds_per_s * VIRTUAL_S),
    }  # fmt: skip


if __name__ == "__main__":
    main()
