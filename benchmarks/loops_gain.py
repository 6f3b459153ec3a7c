"""What deciding radio weights, windows, protocols and lookahead together gains in a cell, over each alone and over
settings that stay.

    python benchmarks/loops_gain.py [--repeats 10] [--seconds 15] [--scenes umi,hall,drive,umi-narrow,hall-narrow]
                                    [--ues 24,60,120] [--csv FILE]

UEs in UMi street canyon at walking speed, in a factory hall, and on a recorded drive; half of them draft with the
profile of a Jetson, half with that of a Raspberry Pi, and half have a promised token speed. The judge keeps some of the
mismatched tokens. The static setting is the best of a grid on other seeds: window, FH or SH, lookahead 0 or 1 and the
radio's scheduler, or decoding by the base station alone. Loops alone begin with the best static setting that drafts.
Virtual time; seeds are paired.

Goodput under promises: tokens per second, those of UEs that got less than promised left out.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.parts.counting import CellRun
from testbed.experiments.cell.rows import document, ue_rows
from testbed.experiments.cell.run import run_cell
from testbed.experiments.cell.sections import CellControl
from testbed.experiments.results.csv_file import write_csv
from testbed.intervals import paired_interval
from testbed.options import load

SWEEPS = Path(__file__).parents[1] / "sweeps" / "cell"
SCENES = {
    "umi": ("classes", 20e6), "hall": ("classes-inf", 10e6), "drive": ("classes-drive", 100e6),
    "umi-narrow": ("classes", 5e6), "hall-narrow": ("classes-inf", 2.5e6),
}  # fmt: skip
"""Cell and bandwidth [Hz]; the radio binds in the narrow ones."""
UES = (24, 60, 120)
KEEPS = 0.3
"""Share of the mismatched tokens that the judge keeps."""
WINDOWS, SCHEDULERS = (2, 4, 8, 12), ("round-robin", "proportional-fair", "max-min", "opportunistic")
KINDS, LOOKAHEADS = ("fh", "sh"), (0, 1)
MOST = 12
"""Largest window that is decided."""
PROMISE_TPS = 6.0
TUNING = (1000, 1001)
"""Seeds on which the static setting is chosen."""
SHORT, FINALISTS = 0.5, 6
"""Duration of the runs that choose the settings which then run in full, relative to it, and the number of these."""
LOOPS = ("windows", "weights", "protocol", "lookahead")
JOINT: dict[str, Any] = dict.fromkeys(LOOPS, "joint")
WAYS = ("static", "equal", *LOOPS, "hints", "joint", "joint, oracle")


class Setting(NamedTuple):
    """A setting that stays."""

    window: int
    """K of all UEs; 0: the base station decodes alone, and only prompts are sent."""
    scheduler: str = SCHEDULERS[0]
    protocol: str = KINDS[-1]
    lookahead: int = 0


ALONE = Setting(0)
GRID = (*itertools.starmap(Setting, itertools.product(WINDOWS, SCHEDULERS, KINDS, LOOKAHEADS)), ALONE)


def main() -> None:
    """Compare over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10, help="seeds")
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of each run")
    parser.add_argument("--scenes", default=",".join(SCENES), help="some of " + ", ".join(SCENES))
    parser.add_argument("--ues", default=",".join(map(str, UES)), help="numbers of UEs")
    parser.add_argument("--csv", type=Path, help="file of rows, written after each load")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for scene in asked.scenes.split(","):
        for ues in map(int, asked.ues.split(",")):
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
    best = tuned(base)
    drafting = next(setting for setting in best if setting.window)
    ways = {"static": static(base, best[0]), "equal": static(base, best[0]._replace(scheduler=SCHEDULERS[0]))}
    ways |= {loop: decided(base, drafting, [loop]) for loop in LOOPS}
    ways["hints"] = replace(decided(base, drafting, ["windows"]), control=CellControl())
    ways["joint"] = decided(base, drafting, LOOPS)
    ways["joint, oracle"] = replace(ways["joint"], control=CellControl(**JOINT, csi="oracle"))
    return ways


def static(base: CellConfig, setting: Setting) -> CellConfig:
    """The cell with a setting that stays."""
    alone: dict[str, Any] = {"protocol": "target-only", "judge_keeps": 0.0}
    drafts = {"window": setting.window, "protocol": setting.protocol, "lookahead": setting.lookahead}
    groups = tuple(replace(group, **(drafts if setting.window else alone)) for group in base.ues)
    return replace(base, ues=groups, radio=replace(base.radio, scheduler=setting.scheduler))


def decided(base: CellConfig, setting: Setting, loops: Collection[str]) -> CellConfig:
    """The cell in which some of `LOOPS` are decided while it serves, and the rest stays."""
    free: dict[str, Any] = {}
    if "windows" in loops:
        free |= {"window": MOST, "window_rule": "hinted"}
    if "protocol" in loops:
        free |= {"protocol": "sh", "protocol_hints": True}
    if "lookahead" in loops:
        free["lookahead_hints"] = True
    found = static(base, setting)
    radio = replace(found.radio, scheduler="joint") if "weights" in loops else found.radio
    control = CellControl(**{loop: JOINT[loop] for loop in loops})
    return replace(found, ues=tuple(replace(group, **free) for group in found.ues), radio=radio, control=control)


def tuned(base: CellConfig) -> list[Setting]:
    """Settings that run in full, the best first: the best of all in shorter runs, some that draft among them."""
    short = replace(base, seconds=max(SHORT * base.seconds, 2 * base.warmup_s))
    return ranked(base, ranked(short, GRID)[:FINALISTS])


def ranked(base: CellConfig, settings: Iterable[Setting]) -> list[Setting]:
    """Settings by their mean goodput under promises on the tuning seeds, the best first."""
    found = {
        setting: statistics.fmean(measured(replace(static(base, setting), seed=seed))["kept_tps"] for seed in TUNING)
        for setting in settings
    }
    return sorted(found, key=lambda setting: -found[setting])


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
    found = measured(replace(config, seed=seed))
    return {"scene": scene, "ues": ues, "way": way, "seed": seed, **setting_of(config)._asdict(), **found}


def setting_of(config: CellConfig) -> Setting:
    """The setting of a cell, with which decisions begin."""
    group = config.ues[0]
    if not group.method.drafts:
        return ALONE._replace(scheduler=config.radio.scheduler)
    return Setting(group.window, config.radio.scheduler, group.protocol, int(group.lookahead == 1))


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
            f"{scene:11s} {ues:3d} UEs {way:14s} K {found[0]['window']:2d} {found[0]['protocol']} "
            f"lookahead {found[0]['lookahead']} {found[0]['scheduler']:18s} "
            f"{mean:7.1f} tokens/s, {switches:.2f} switches/s {beside}",
            flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
