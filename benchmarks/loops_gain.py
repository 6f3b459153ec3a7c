"""What deciding radio weights and draft windows together gains in a cell, over each alone and over settings that stay.

    python benchmarks/loops_gain.py [--repeats 10] [--seconds 30] [--scenes umi,hall,drive] [--csv FILE]

UEs in UMi street canyon at walking speed, in a factory hall, and on a recorded drive; half of them draft with the
profile of a Jetson, half with that of a Raspberry Pi, and half have a promised token speed. All send hidden states on
request (SH). The static setting is the best of a grid on other seeds: a window for all, or decoding by the base station
alone, and the radio's scheduler. Virtual time; seeds are paired.

Goodput under promises: tokens per second, those of UEs that got less than promised left out.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from testbed.experiments.cell.config import CellConfig, CellControl, UeGroup
from testbed.experiments.cell.parts.counting import CellRun
from testbed.experiments.cell.rows import document, ue_rows
from testbed.experiments.cell.run import run_cell
from testbed.experiments.results.csv_file import write_csv
from testbed.intervals import paired_interval
from testbed.options import load

SWEEPS = Path(__file__).parents[1] / "sweeps" / "cell"
SCENES = {"umi": ("classes", 20e6), "hall": ("classes-inf", 10e6), "drive": ("classes-drive", 100e6)}
"""Cell and bandwidth [Hz]."""
UES = (24, 60, 120)
KEEPS = 0.3
"""Share of the mismatched tokens that the judge keeps."""
WINDOWS, SCHEDULERS = (2, 4, 8, 12), ("round-robin", "proportional-fair", "max-min")
MOST = 12
"""Largest window that is decided."""
PROMISE_TPS = 6.0
TUNING = (1000, 1001)
"""Seeds on which the static setting is chosen."""
JOINT = CellControl(windows="joint", weights="joint")
WAYS = ("static", "equal", "windows", "weights", "hints", "joint", "joint, oracle")


def main() -> None:
    """Compare over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10, help="seeds")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of each run")
    parser.add_argument("--scenes", default=",".join(SCENES), help="some of " + ", ".join(SCENES))
    parser.add_argument("--csv", type=Path, help="file of rows, written after each load")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for scene in asked.scenes.split(","):
        for ues in UES:
            found = compared(scene, ues, range(asked.repeats), asked.seconds)
            show(scene, ues, found)
            rows += found
            if asked.csv is not None:
                write_csv(asked.csv, rows)


def compared(scene: str, ues: int, seeds: Iterable[int], seconds: float) -> list[dict[str, Any]]:
    """Rows of all ways and seeds of one load."""
    ways = configurations(cell(scene, ues, seconds))
    return [row(scene, ues, way, config, seed) for seed in seeds for way, config in ways.items()]


def cell(scene: str, ues: int, seconds: float) -> CellConfig:
    """The cell, with fixed windows and equal shares."""
    name, bandwidth_hz = SCENES[scene]
    loaded = load(CellConfig, SWEEPS / f"{name}.yaml")
    groups = tuple(
        replace(loaded.ues[0], name=f"{profile} {promise or 0:g}", profile=profile, class_tps=promise, count=ues // 4,
                protocol="sh", judge_keeps=KEEPS, window=MOST)
        for profile, promise in itertools.product(("wisv", "raspberry-pi-5"), (PROMISE_TPS, None))
    )  # fmt: skip
    radio = replace(loaded.radio, bandwidth_hz=bandwidth_hz, scheduler="round-robin")
    return replace(loaded, ues=groups, radio=radio, seconds=seconds)


def configurations(base: CellConfig) -> dict[str, CellConfig]:
    """All ways to run a cell; the static setting is the best on the tuning seeds."""
    grid = {(window, order): static(base, window, order) for window in WINDOWS for order in SCHEDULERS}
    grid[0, SCHEDULERS[0]] = static(base, 0, SCHEDULERS[0])  # nothing but prompts goes up
    window, order = max(grid, key=lambda setting: tuned(grid[setting]))
    free = tuple(replace(group, window_rule="hinted") for group in base.ues)
    hinted, joint = replace(static(base, MOST, order), ues=free), replace(base.radio, scheduler="joint")
    return {
        "static": grid[window, order],
        "equal": static(base, window, SCHEDULERS[0]),
        "windows": replace(hinted, control=replace(JOINT, weights="fixed")),
        "weights": replace(static(base, window, order), radio=joint, control=replace(JOINT, windows="fixed")),
        "hints": hinted,
        "joint": replace(hinted, radio=joint, control=JOINT),
        "joint, oracle": replace(hinted, radio=joint, control=replace(JOINT, csi="oracle")),
    }


def static(base: CellConfig, window: int, order: str) -> CellConfig:
    """The cell with one window for all, 0 for decoding by the base station alone, and a scheduler of the radio."""
    alone: dict[str, Any] = {"protocol": "target-only", "judge_keeps": 0.0}
    groups: tuple[UeGroup, ...] = tuple(
        replace(group, window=window or MOST, **({} if window else alone)) for group in base.ues
    )
    return replace(base, ues=groups, radio=replace(base.radio, scheduler=order))


def tuned(config: CellConfig) -> float:
    """Mean goodput under promises on the tuning seeds."""
    return statistics.fmean(measured(replace(config, seed=seed))["kept_tps"] for seed in TUNING)


def measured(config: CellConfig, carried_out: Callable[[CellConfig], CellRun] = run_cell) -> dict[str, float]:
    """Figures of one run."""
    run = carried_out(config)
    found, ues = document(config, run), ue_rows(config, run)
    kept = [one for one in ues if one["class_tps"] is None or one["goodput_tps"] >= one["class_tps"]]
    return {
        "kept_tps": sum(one["goodput_tps"] for one in kept),
        "kept_ues": sum(one["class_tps"] is not None for one in kept),
        "goodput_tps": found["cell"]["goodput_tps"],
        "mean_log_tps": statistics.fmean(math.log(max(one["goodput_tps"], 1e-3)) for one in ues),
        "uplink": found["cell"]["uplink_utilisation"],
        "busy": found["cell"]["busy_share"],
        "switches_per_s": statistics.fmean(one["switches_per_s"] for one in ues),
    }


def row(scene: str, ues: int, way: str, config: CellConfig, seed: int) -> dict[str, Any]:
    """Row of one run."""
    setting = {
        "window": config.ues[0].window if config.ues[0].method.drafts else 0,
        "scheduler": config.radio.scheduler,
    }
    return {"scene": scene, "ues": ues, "way": way, "seed": seed, **setting, **measured(replace(config, seed=seed))}


def show(scene: str, ues: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print each way's mean, and the difference of `joint` to it, relative to that mean."""
    by_way = {way: [one for one in rows if one["way"] == way] for way in WAYS}
    ours = [one["kept_tps"] for one in by_way["joint"]]
    for way, found in by_way.items():
        theirs = [one["kept_tps"] for one in found]
        mean, switches = statistics.fmean(theirs), statistics.fmean(one["switches_per_s"] for one in found)
        if mean > 0 and way != "joint":
            gain = paired_interval(ours, theirs)
            beside = (
                f"joint {100 * gain.value / mean:+.1f} % [{100 * gain.low / mean:+.1f}, {100 * gain.high / mean:+.1f}]"
            )
        else:
            beside = ""
        print(
            f"{scene:6s} {ues:3d} UEs {way:14s} K {found[0]['window']:2d} {found[0]['scheduler']:18s} "
            f"{mean:7.1f} tokens/s, {switches:.2f} switches/s {beside}",
            flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
