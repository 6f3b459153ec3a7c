"""Speed of each series of a sweep against the fastest of some others at the same point, by default synchronous windows.

Intervals are paired: a bootstrap over the prompts of the ratio of all time of the fastest to all time of the series.
Passes, drafted and void tokens, bytes and hidden drafting time are means per committed token.

Run: python benchmarks/frontier.py SWEEP_DIRECTORY [--by rtt_ms,profile] [--against "K = .*"] [--rows FILE.csv]
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from support.points import value_of

from testbed.errors import TestbedError
from testbed.experiments.report.data import RowSource
from testbed.experiments.results.files import read_requests, read_rounds
from testbed.experiments.sweep.report import load_all
from testbed.intervals import Bootstrap

COLUMNS = ("request", "tokens", "rounds", "latency_s", "uplink_bytes", "downlink_bytes", "lossless")
SUMS = ("drafted", "drafted_ahead", "void", "hidden_s")

Requests = dict[str, list[Any]]


def requests_of(part: RowSource) -> Requests:
    """Columns of a point's requests, with sums over their rounds."""
    found: Requests = {name: read_requests(part.directory)[name].to_pylist() for name in COLUMNS}
    rounds = read_rounds(part.directory)
    for name in SUMS:
        sums: dict[int, float] = defaultdict(float)
        for request, value in zip(rounds["request"].to_pylist(), rounds[name].to_pylist(), strict=True):
            sums[request] += value or 0
        found[name] = [sums[request] for request in found["request"]]
    return found


def compared(name: str, own: Requests, best: Requests) -> dict[str, Any]:
    """A row of the table."""
    ratio = Bootstrap({"own": own["latency_s"], "best": best["latency_s"]}).ratio("best", "own")
    tokens = sum(own["tokens"])

    def each(*columns: str) -> float:
        return sum(sum(own[column]) for column in columns) / tokens

    return {
        "series": name, "tokens_per_s": round(tokens / sum(own["latency_s"]), 2), "ratio": round(ratio.value, 3),
        "low": round(ratio.low, 3), "high": round(ratio.high, 3), "passes": round(each("rounds"), 3),
        "drafted": round(max(each("drafted", "void"), each("drafted_ahead")), 3), "void": round(each("void"), 3),
        "up_bytes": round(each("uplink_bytes"), 1), "down_bytes": round(each("downlink_bytes"), 1),
        "hidden_s": round(each("hidden_s"), 4), "lossless": all(own["lossless"]),
    }  # fmt: skip


def main() -> None:
    """Print a line of CSV for each point and series, and write the requests behind them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--by", default="rtt_ms")
    parser.add_argument("--against", default="K = .*")
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    keys = options.by.split(",")
    try:
        (shown,) = load_all([options.sweep])
    except TestbedError as exc:
        parser.error(str(exc))
    if not all("series" in part.row for part in shown.parts):
        parser.error(f"{options.sweep} has no series to compare")
    points: dict[tuple[Any, ...], dict[str, Requests]] = defaultdict(dict)
    for part in shown.parts:
        points[tuple(value_of(part, key) for key in keys)][part.row["series"]] = requests_of(part)
    out: Any = None
    for place, series in points.items():
        windows = {name: one for name, one in series.items() if re.fullmatch(options.against, name)}
        if not windows:
            parser.error(f"--against {options.against} matches none of {', '.join(series)}")
        best = min(windows, key=lambda name: sum(windows[name]["latency_s"]))
        for name, own in series.items():
            row = {**dict(zip(keys, place, strict=True)), **compared(name, own, windows[best]), "best": best}
            out = out or _started(csv.DictWriter(sys.stdout, list(row)))
            out.writerow(row)
    if options.rows:
        _write(options.rows, keys, points)


def _write(path: Path, keys: list[str], points: dict[tuple[Any, ...], dict[str, Requests]]) -> None:
    with path.open("w", newline="") as file:
        out = _started(csv.DictWriter(file, [*keys, "series", *COLUMNS, *SUMS]))
        for place, series in points.items():
            for name, own in series.items():
                for i in range(len(own["request"])):
                    values = {column: own[column][i] for column in (*COLUMNS, *SUMS)}
                    out.writerow({**dict(zip(keys, place, strict=True)), "series": name, **values})


def _started(out: Any) -> Any:
    out.writeheader()
    return out


if __name__ == "__main__":
    main()
