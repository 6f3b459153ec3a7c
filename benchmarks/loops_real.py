"""What deciding radio weights, windows, protocols and lookahead together gains over the best static setting: real
processes, and the same in virtual time.

    python benchmarks/loops_real.py [--seeds 3] [--seconds 30] [--bandwidth-hz 20e6] [--csv FILE]

Eight UEs in `loops_gain.py`'s UMi cell; the judge keeps no token. Four draft with edge-SD's profile and have a promise
that the base station alone cannot keep, four with the profile of a Jetson. Each UE of a real run is a process behind
the relay. The static setting is the best of `loops_gain.py`'s grid in virtual time on other seeds. Seeds are paired.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loops_gain import LOOPS, cell, decided, measured, setting_of, static, tuned
from msgspec.structs import replace

from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.parts.counting import CellRun
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.cell.run import run_cell
from testbed.experiments.results.csv_file import write_csv
from testbed.intervals import paired_interval

UES = 8
PROMISE_TPS = 36.0
"""More than the base station alone decodes for each of eight UEs, some 33 tokens/s."""
FIGURES = ("kept_tps", "goodput_tps")
TIMES: dict[str, Callable[[CellConfig], CellRun]] = {"virtual": run_cell, "real": run_cell_really}


def main() -> None:
    """Compare over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of each run")
    parser.add_argument("--bandwidth-hz", type=float, default=20e6)
    parser.add_argument("--csv", type=Path, help="file of rows, written after each seed")
    asked = parser.parse_args()
    ways = configurations(eight(asked.seconds, asked.bandwidth_hz))
    for way, config in ways.items():
        print(way, setting_of(config), flush=True)
    rows: list[dict[str, Any]] = []
    for seed in range(asked.seeds):
        rows += [row(time, way, config, seed) for time in TIMES for way, config in ways.items()]
        if asked.csv is not None:
            write_csv(asked.csv, rows)
    for time, figure in itertools.product(TIMES, FIGURES):
        show(time, figure, [one for one in rows if one["time"] == time])


def eight(seconds: float, bandwidth_hz: float) -> CellConfig:
    """The cell, with fixed windows and equal shares."""
    base = cell("umi", UES, seconds)
    fast, slow = (
        replace(base.ues[0], name=profile, profile=profile, class_tps=promise, count=UES // 2, judge_keeps=0.0)
        for profile, promise in (("edge-sd", PROMISE_TPS), ("wisv", None))
    )
    return replace(base, ues=(fast, slow), radio=replace(base.radio, bandwidth_hz=bandwidth_hz))


def configurations(base: CellConfig) -> dict[str, CellConfig]:
    """The best static setting on the tuning seeds, and joint control."""
    best = tuned(base)
    drafting = next(setting for setting in best if setting.window)
    return {"static": static(base, best[0]), "joint": decided(base, drafting, LOOPS)}


def row(time: str, way: str, config: CellConfig, seed: int) -> dict[str, Any]:
    """Row of one run."""
    found = measured(replace(config, seed=seed), TIMES[time])
    return {"time": time, "way": way, "seed": seed, **setting_of(config)._asdict(), **found}


def show(time: str, figure: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print both means of a figure, and their difference relative to that of the static setting."""
    static_tps, joint_tps = ([one[figure] for one in rows if one["way"] == way] for way in ("static", "joint"))
    mean = statistics.fmean(static_tps)
    line = f"{time:8s} {figure:12s} static {mean:7.1f}, joint {statistics.fmean(joint_tps):7.1f} tokens/s"
    if mean > 0 and len(static_tps) > 1:
        gain = paired_interval(joint_tps, static_tps)
        low, value, high = (100 * part / mean for part in (gain.low, gain.value, gain.high))
        line += f", {value:+.1f} % [{low:+.1f}, {high:+.1f}], n = {len(static_tps)}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
