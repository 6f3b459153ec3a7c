"""Plans of edge SD batching carried out in a cell, beside their predictions and beside other ways to serve its UEs.

    python benchmarks/cell_plan.py [--repeats 5] [--seconds 60] [--csv FILE]

The cell is sweeps/cell/together.yaml, under greedy and FH. A plan is made from a run with another seed than the one in
which it is carried out. Figures are the time from the arrival of all requests to the last answer, over the prediction
of the plan: the plan; one batch with equal shares; first come, first served with equal shares.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.planning import measured_problem
from testbed.experiments.cell.rows import ue_rows
from testbed.experiments.cell.run import run_cell
from testbed.experiments.results.csv_file import write_csv
from testbed.intervals import repeats_interval
from testbed.optim.tasks import plan
from testbed.options import load

CELL = Path(__file__).parents[1] / "sweeps" / "cell" / "together.yaml"
OTHER = 1000
"""Added to the seed of the run that a plan is made from."""
WAYS = ("planned", "one batch", "fcfs")


def main() -> None:
    """Compare over seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="seeds")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each run")
    parser.add_argument("--csv", type=Path, help="file of rows")
    asked = parser.parse_args()
    rows = [one(protocol, seed, asked.seconds) for protocol in ("greedy", "fh") for seed in range(asked.repeats)]
    if asked.csv is not None:
        write_csv(asked.csv, rows)
    for protocol in ("greedy", "fh"):
        mine = [row for row in rows if row["protocol"] == protocol]
        for way in WAYS:
            ratio = repeats_interval([row[way] / row["predicted"] for row in mine])
            print(
                f"{protocol:7s} {way:10s} {sum(row[way] for row in mine) / len(mine):.3f} s, over the prediction "
                f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}], n = {len(mine)}"
            )


def one(protocol: str, seed: int, seconds: float) -> dict[str, Any]:
    """Prediction and times of one seed, in seconds."""
    loaded = load(CellConfig, CELL)
    groups = tuple(msgspec.structs.replace(group, protocol=protocol) for group in loaded.ues)
    cell = msgspec.structs.replace(loaded, ues=groups, seed=seed, seconds=seconds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = msgspec.structs.replace(cell, seed=seed + OTHER)
        problem, window = measured_problem(before, ue_rows(before, run_cell(before)))
        found = plan(problem, window=window)
        count = len(problem.tasks)
        single = {**found, "batches": [list(range(count))], "bandwidth": [1 / count] * count}
        times = [_wave_s(cell, folder, content) for content in (found, single, None)]
    batches = " ".join(",".join(map(str, batch)) for batch in found["batches"])
    parts = {"communication": found["communication_s"], "inference": found["inference_s"]}
    return {
        "protocol": protocol, "seed": seed, "batches": batches, "predicted": found["latency_s"], **parts,
        **dict(zip(WAYS, times, strict=True)),
    }  # fmt: skip


def _wave_s(cell: CellConfig, folder: Path, content: dict[str, Any] | None) -> float:
    """Mean time from the arrival of all requests to the last answer."""
    if content is not None:
        path = folder / "plan.json"
        path.write_text(json.dumps(content))
        cell = msgspec.structs.replace(cell, bs=msgspec.structs.replace(cell.bs, plan=str(path)))
    tallies = [tally for _, some in run_cell(cell).groups for tally in some]
    waves = [max(latencies) for latencies in zip(*(tally.latencies_s for tally in tallies), strict=False)]
    return sum(waves) / len(waves)


if __name__ == "__main__":
    main()
