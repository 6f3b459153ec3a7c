"""Cells: time of 200 UEs in virtual time, and a cell of real processes against the same in virtual time.

    python benchmarks/cell.py [--repeats 3] [--seconds 60] [--csv FILE] [--file CELL.yaml] [--between]
        [--carriers relay,tc] [--alone]

The real cell has four UEs with FH, four with greedy drafting and two that send bytes, or is that of a file; with
`--alone`, each of its groups has a run of its own. Prints the CPU seconds of 200 UEs x 60 s on two radios, and per
group the ratio real / virtual of goodput, mean and p95 latency over paired seeds, with the 95 % interval of its mean,
for each carrier of the real cell's bytes (tc needs root). Loops of the scheduling class SCHED_IDLE keep the processors
awake meanwhile, since those of a virtual machine that sleep may wake late.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from testbed.channel.radio.config import RadioConfig
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.parts.counting import CellRun
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.results.csv_file import write_csv
from testbed.intervals import repeats_interval
from testbed.options import load

STREET = Path(__file__).parents[1] / "sweeps" / "cell" / "classes.yaml"
FIGURES = ("goodput_tps", "latency_s", "latency_p95_s")
KEPT = ("group", "ues", "responses", *FIGURES)
EIGHT = CellConfig(
    radio=RadioConfig(bandwidth_hz=10e6),
    ues=(
        UeGroup(name="fh", count=4, protocol="fh", response=(20, 60)),
        UeGroup(name="greedy", count=4, response=(20, 60)),
        UeGroup(name="bytes", count=2, traffic="bytes", message_bytes=20_000, every_s=0.1),
    ),
)
MANY = CellConfig(
    seconds=60.0,
    warmup_s=5.0,
    radio=RadioConfig(bandwidth_hz=100e6),
    ues=(
        UeGroup(name="greedy", count=100, window=6, class_tps=4.0),
        UeGroup(name="fh", count=100, protocol="fh", window=6, class_tps=4.0),
    ),
)


AWAKE = """
import os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[1]):
    for _ in range(10**5):
        pass
"""


@contextlib.contextmanager
def processors_awake() -> Iterator[None]:
    """Keep all processors from sleeping, by loops that yield to everything else (Linux)."""
    command = [sys.executable, "-c", AWAKE, str(os.getpid())]
    loops = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def street() -> CellConfig:
    """200 UEs at walking speed in UMi street canyon with link adaptation, half of them SH."""
    loaded = load(CellConfig, STREET)
    ues = tuple(
        msgspec.structs.replace(group, count=50, protocol="sh" if number % 2 else "greedy")
        for number, group in enumerate(loaded.ues)
    )
    return msgspec.structs.replace(loaded, seconds=60.0, ues=ues)


CALIBRATING = 1000
"""Seed of the run that measures the times between passes."""
LARGE = (("one efficiency for all, FDD", MANY), ("UMi, TDD, proportional fair", street()))


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="seeds of the comparison")
    parser.add_argument("--csv", type=Path, help="file of rows")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each real run")
    parser.add_argument("--between", action="store_true", help="virtual time waits between passes, as another run did")
    parser.add_argument("--file", type=Path, help="cell to compare; that of 200 UEs is left out then")
    parser.add_argument("--carriers", help="relay, tc or both, separated by commas; default: the file's")
    parser.add_argument("--alone", action="store_true", help="each group of UEs in a cell of its own")
    asked = parser.parse_args()
    compared = EIGHT if asked.file is None else load(CellConfig, asked.file)
    for name, many in LARGE if asked.file is None else ():
        start_s = time.process_time()
        cell = document(many, run_cell(many))["cell"]
        spent_s = time.process_time() - start_s
        print(f"200 UEs x 60 s, slots of 1 ms, {name}: {spent_s:.1f} s of CPU, {cell['passes']} passes")
    carriers = asked.carriers.split(",") if asked.carriers else [compared.carrier]
    rows: list[dict[str, Any]] = []
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for ues in [(group,) for group in compared.ues] if asked.alone else [compared.ues]:
        cell = msgspec.structs.replace(compared, ues=ues)
        if asked.between:
            cell = _with_between(cell, asked.seconds)
        more, found = _compare(cell, carriers, asked.repeats, asked.seconds)
        rows, ratios = rows + more, ratios | found
        if asked.csv is not None:
            write_csv(asked.csv, rows)
    for (way, name, figure), values in ratios.items():
        one = repeats_interval(values)
        about = f"{name:10s} {figure:14s} {way} / virtual"
        print(f"{about} {one.value:.3f} [{one.low:.3f}, {one.high:.3f}], n = {len(values)}")


def _compare(
    compared: CellConfig, carriers: Sequence[Any], repeats: int, seconds: float
) -> tuple[list[dict[str, Any]], dict[tuple[str, str, str], list[float]]]:
    """Rows of all ways, and the ratios to virtual time by carrier, group and figure."""
    names = [group.name for group in compared.ues if group.traffic == "tokens"]
    ratios: dict[tuple[str, str, str], list[float]] = {}
    rows: list[dict[str, Any]] = []
    for seed in range(repeats):
        config = msgspec.structs.replace(compared, seed=seed, seconds=seconds)
        ways = {"virtual": _rows(config, run_cell(config))}
        for carrier in carriers:
            with processors_awake():
                ways[carrier] = _rows(config, run_cell_really(msgspec.structs.replace(config, carrier=carrier)))
        for way, groups in ways.items():
            rows += [{"way": way, "seed": seed, **{key: groups[name][key] for key in KEPT}} for name in names]
        for way, name, figure in itertools.product(carriers, names, FIGURES):
            ratio = (ways[way][name][figure] or math.nan) / (ways["virtual"][name][figure] or math.nan)
            ratios.setdefault((way, name, figure), []).append(ratio)
    return rows, ratios


def _with_between(config: CellConfig, seconds: float) -> CellConfig:
    """The cell with the times between passes that a run with processes measures, which is compared with nothing."""
    with processors_awake():
        found = document(config, run_cell_really(msgspec.structs.replace(config, seed=CALIBRATING, seconds=seconds)))
    times = {name: found["cell"][name] for name in ("between_ms", "between_request_ms")}
    print(", ".join(f"{name} {value:.2f}" for name, value in times.items()))
    return msgspec.structs.replace(config, bs=msgspec.structs.replace(config.bs, **times))


def _rows(config: CellConfig, run: CellRun) -> dict[str, dict[str, Any]]:
    return {row["group"]: row for row in document(config, run)["rows"]}


if __name__ == "__main__":
    main()
