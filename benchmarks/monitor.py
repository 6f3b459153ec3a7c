"""Overhead of the live view: 64 sessions over ZeroMQ, alternating between base stations with and without it.

Two base station processes run the synthetic engine: one with `--monitor`, from which a viewer receives ten updates per
second, and one without. 64 UEs load one, then the other, in pairs of random order. Each UE is a separate peer and sends
the target's own tokens, so that every window is accepted. There are two kinds of load:

- full: UEs draft without delay; base station and UEs are never idle, so that on two cores any work besides rounds, in
  any process, reduces the number of rounds.
- paced: UEs draft for 100 ms ± 50 %, some hundred rounds per second, like engines with models. The base station idles
  in between, and the duration of rounds counts. (With equal drafting times, UEs would synchronise.)

Reported are medians over pairs of (with / without), with 95 % intervals by order statistics: rounds per second,
mean duration of a round at the UEs, and the base station's CPU time per round; and the CPU time of the live view's
process as a share of one core. The goal is rounds less than 2 % slower.

Run: python benchmarks/monitor.py [--pairs N] [--seconds S] [--text] [--json] [--csv FILE]
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np
from support.commands import command_line, write_rows
from support.ues import SEED, UES, WINDOW, Load

from testbed.config import ServeConfig
from testbed.experiments.results import directory as results
from testbed.experiments.runs.processes import base_station
from testbed.intervals import median_interval

PACES_S = {"full": 0.0, "paced": 0.1}
WARM_S = 0.15


def main() -> None:
    """Run the benchmark and print the results."""
    parser = command_line(__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.5, help="duration of a turn")
    parser.add_argument("--text", action="store_true", help="let the live view show outputs too")
    arguments = parser.parse_args()
    serve = ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*")
    watched = msgspec.structs.replace(serve, monitor="127.0.0.1:0", monitor_text=arguments.text)
    with base_station(watched) as on, base_station(serve) as off, viewer(on["monitor"]) as view:
        rows = [paired(pace, on, off, view, arguments.pairs, arguments.seconds) for pace in PACES_S]
    report = {"host": results.host(), "seed": SEED, "ues": UES, "rows": rows}
    if arguments.csv is not None:
        write_rows(arguments.csv, rows)
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['host']['cpu']}, {report['host']['cores']} cores; {UES} UEs, window {WINDOW}, seed {SEED}")
    for row in rows:
        print(
            f"{row['pace']:6} {row['pairs']} pairs; without: {row['rounds_per_s']:.0f} rounds/s, "
            f"{row['round_ms']:.2f} ms, {row['cpu_us']:.0f} µs of CPU per round; updates {row['updates_per_s']:.1f}/s, "
            f"which take {100 * row['view_share']:.1f} % of a core"
        )
        for name in ("rounds", "time", "cpu"):
            value, low, high = row[name]
            print(f"       {name:6} with / without: {value:.4f} [{low:.4f}, {high:.4f}]")


# ---------------------------------------------------------------- pairs


class Turn(NamedTuple):
    """Measurements of one base station in one turn; CPU time is per round."""

    rounds_per_s: float
    round_s: float
    cpu_s: float
    updates_per_s: float
    view_share: float
    """CPU time of the live view's process, as a share of one core."""


def paired(
    pace: str, on: dict[str, Any], off: dict[str, Any], view: Viewer, pairs: int, seconds: float
) -> dict[str, Any]:
    """Ratios of turns with the live view to turns without."""
    rng = np.random.default_rng(SEED)
    turns = []
    with contextlib.closing(Load(on, PACES_S[pace])) as watched, contextlib.closing(Load(off, PACES_S[pace])) as other:
        for _ in range(pairs):
            sides: list[tuple[Load, Viewer | None]] = [(watched, view), (other, None)]
            found = {side: turn(*sides[side], seconds) for side in rng.permutation(2).tolist()}
            turns.append((found[0], found[1]))
    others = [other for _, other in turns]
    ratios = np.array([[a / b for a, b in zip(one[:3], other[:3], strict=True)] for one, other in turns])
    return {
        "pace": pace,
        "pairs": pairs,
        "rounds_per_s": float(np.median([other.rounds_per_s for other in others])),
        "round_ms": float(np.median([other.round_s for other in others])) * 1e3,
        "cpu_us": float(np.median([other.cpu_s for other in others])) * 1e6,
        "updates_per_s": float(np.median([one.updates_per_s for one, _ in turns])),
        "view_share": float(np.median([one.view_share for one, _ in turns])),
        **{name: list(median_interval(ratios[:, i])) for i, name in enumerate(("rounds", "time", "cpu"))},
    }


def turn(load: Load, view: Viewer | None, seconds: float) -> Turn:
    """Load one base station for `seconds`, with a viewer if given."""
    with looking(view):
        load.begin()
        load.run(WARM_S)
        before_s, shown_s, seen = cpu_s(load.pid), sum(map(cpu_s, load.web)), view.seen.value if view else 0
        rounds, round_s, wall_s = load.run(seconds)
        spent_s, seen = cpu_s(load.pid) - before_s, view.seen.value - seen if view else 0
        shown_s = sum(map(cpu_s, load.web)) - shown_s
        load.rest()
        rounds, round_s = max(1, rounds), round_s or wall_s  # if the machine stalled; medians tolerate it
        return Turn(rounds / wall_s, round_s, spent_s / rounds, seen / wall_s, shown_s / wall_s)


def cpu_s(pid: int) -> float:
    """Total CPU time of all threads of a process."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


# ---------------------------------------------------------------- a viewer


class Viewer(NamedTuple):
    """A viewer process that is switched on and off."""

    pipe: Any
    seen: Any
    """Number of updates received, in shared memory, so that reading it does not delay the UEs."""


@contextlib.contextmanager
def viewer(url: str) -> Iterator[Viewer]:
    """Run a viewer of the live view at `url`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    seen = context.Value("q", 0, lock=False)
    process = context.Process(target=_view, args=(theirs, seen, urlsplit(url).netloc), daemon=True)
    process.start()
    try:
        yield Viewer(ours, seen)
    finally:
        process.kill()
        process.join(10)


@contextlib.contextmanager
def looking(view: Viewer | None) -> Iterator[None]:
    """Let the viewer receive updates during the block."""
    if view is None:
        yield
        return
    view.pipe.send("look")
    assert view.pipe.poll(30) and view.pipe.recv() == "looking"
    try:
        yield
    finally:
        view.pipe.send("leave")
        assert view.pipe.poll(30) and view.pipe.recv() == "left"


def _view(pipe: Any, seen: Any, netloc: str) -> None:
    while pipe.recv() == "look":
        connection = http.client.HTTPConnection(netloc, timeout=30)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        answer.read1(2**20)
        pipe.send("looking")
        while not pipe.poll():
            seen.value += answer.read1(2**20).count(b"\n\n")
        pipe.recv()
        connection.close()
        pipe.send("left")


if __name__ == "__main__":
    main()
