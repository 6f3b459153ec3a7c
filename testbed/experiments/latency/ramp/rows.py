"""Results of a load ramp: latency by load and window, and hinted windows compared with the best fixed one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.experiments.latency.openloop import GROWTH
from testbed.experiments.latency.ramp.climb import RampRun
from testbed.experiments.latency.ramp.config import HINTS, RampConfig
from testbed.experiments.results.csv_file import write_csv
from testbed.intervals import Bootstrap, Interval, compared, percentile

Array = NDArray[np.float64]
WITHIN = 0.02
"""Maximum slowdown of hinted windows over the best fixed one."""
VERDICTS = {"ahead": False, "behind": True, "undecided": None}
"""Whether a ratio of latencies is below a limit, by its comparison with it."""


class Table(NamedTuple):
    """A ramp's results."""

    points: list[dict[str, Any]]
    """One row for each load and policy."""
    loads: list[dict[str, Any]]
    """One row for each load: the best fixed window, and hinted windows compared with it."""
    ramp: list[dict[str, Any]]
    """One row for each fixed window: hinted windows compared with it over all loads."""
    switches: list[dict[str, Any]]
    """One row for each seed: changes of hinted windows, of all UEs together."""
    holds: bool
    """Whether hinted windows are within `WITHIN` of the best fixed one at every load, and beat each over all loads,
    both by the whole interval."""


def table(config: RampConfig, runs: Sequence[RampRun]) -> Table:
    """Compare policies. `points` and `loads` discard the first `settle` of each step; `ramp` includes all requests.

    The best fixed window is chosen by the same latencies that it is compared by, which favours it. Intervals of ratios
    are paired and over seeds. `within` and `better` are None where the interval contains the limit.

    Raises:
        BadInput: a run is missing.
    """
    steps = range(len(runs[0].loads)) if runs else range(0)
    mine = {policy: _by_seed(config, runs, policy) for policy in config.policies}
    settled = {(p, s): [_settled(config, run, s) for run in mine[p]] for p in config.policies for s in steps}
    points = [_point(config, runs, p, s, settled[p, s]) for s in steps for p in config.policies]
    loads = []
    for step in steps:
        fixed = {p: np.concatenate(settled[p, step]).mean() for p in map(str, config.windows)}
        best = min(fixed, key=lambda p: fixed[p])
        ratio = _ratio(settled[HINTS, step], settled[best, step])
        loads.append({
            "rps": runs[0].loads[step], "best_window": int(best), "best_s": float(fixed[best]),
            "hinted_s": float(np.concatenate(settled[HINTS, step]).mean()), "ratio": ratio.value,
            "low": ratio.ends[0], "high": ratio.ends[1], "within": VERDICTS[compared(ratio, 1 + WITHIN)],
        })  # fmt: skip
    whole = {p: [np.array([a.latency_s for a in run.answered]) for run in mine[p]] for p in config.policies}
    ramp = []
    for policy in map(str, config.windows):
        ratio = _ratio(whole[HINTS], whole[policy])
        mean_s = float(np.concatenate(whole[policy]).mean())
        ramp.append({
            "window": int(policy), "latency_s": mean_s, "hinted_s": float(np.concatenate(whole[HINTS]).mean()),
            "ratio": ratio.value, "low": ratio.ends[0], "high": ratio.ends[1], "better": VERDICTS[compared(ratio, 1.0)],
        })  # fmt: skip
    holds = all(row["within"] for row in loads) and all(row["better"] for row in ramp)
    return Table(points, loads, ramp, [_switches(run) for run in mine[HINTS]], holds)


def _switches(run: RampRun) -> dict[str, Any]:
    rounds = sum(answer.rounds for answer in run.answered)
    each = None if run.switches is None else 1000 * run.switches / max(1, rounds)
    return {"seed": run.seed, "switches": run.switches, "rounds": rounds, "per_1000_rounds": each}


def _by_seed(config: RampConfig, runs: Sequence[RampRun], policy: str) -> list[RampRun]:
    """The runs of one policy."""
    found = {run.seed: run for run in runs if run.policy == policy}
    lacking = [seed for seed in config.seeds if seed not in found]
    if lacking:
        raise BadInput(f"the ramp of window {policy} with seed {lacking[0]} is missing")
    return [found[seed] for seed in config.seeds]


def _settled(config: RampConfig, run: RampRun, step: int) -> Array:
    """Latencies of a step without its first `settle`."""
    found = np.array([a.latency_s for a in run.answered if a.step == step])
    return found[int(config.settle * len(found)) :]


def _point(
    config: RampConfig, runs: Sequence[RampRun], policy: str, step: int, latencies: list[Array]
) -> dict[str, Any]:
    together = np.concatenate(latencies)
    mine = [a for run in runs if run.policy == policy for a in run.answered if a.step == step]
    drafted, tried = sum(a.drafted for a in mine), sum(a.accepted + a.rejections for a in mine)
    return {
        "rps": runs[0].loads[step],
        "policy": policy,
        "requests": int(together.size),
        "latency_s": float(together.mean()),
        "latency_p95_s": percentile("latency_p95_s", together),
        "latency_p99_s": percentile("latency_p99_s", together),
        "window": drafted / max(1, sum(a.rounds for a in mine)),
        "alpha": sum(a.accepted for a in mine) / tried if tried else None,
        "piled_up": any(_grows(seed) for seed in latencies),
    }


def _grows(latencies: Array) -> bool:
    """Whether the last third of a step took `GROWTH` times as long as its first third, and significantly longer."""
    third = latencies.size // 3
    if third < 3:
        return False
    first, last = latencies[:third], latencies[-third:]
    error_s = float(np.hypot(first.std(ddof=1), last.std(ddof=1))) / third**0.5
    return bool(last.mean() > GROWTH * first.mean() and last.mean() - first.mean() > 2 * error_s)


def _ratio(ours: list[Array], theirs: list[Array]) -> Interval:
    """Ratio of means over the same requests, whose seeds are resampled as a whole."""
    seeds = np.repeat(np.arange(len(ours)), [len(each) for each in ours])
    columns = {"ours": np.concatenate(ours), "theirs": np.concatenate(theirs)}
    return Bootstrap(columns, groups=seeds).ratio("ours", "theirs")


def write(found: Table, out: Path) -> list[Path]:
    """Write `points.csv`, `loads.csv`, `ramp.csv`, `switches.csv` and `ramp.png`.

    Raises:
        BadInput: no plotting library, or `out` is not writable.
    """
    paths = []
    for name in ("points", "loads", "ramp", "switches"):
        paths.append(out / f"{name}.csv")
        write_csv(paths[-1], getattr(found, name), newline="\r\n")
    return [*paths, _plot(found, out / "ramp.png")]


def _plot(found: Table, path: Path) -> Path:
    from testbed.experiments.plots.style import SeriesStyle, canvas, legend, save_figure, styles_of

    def draw() -> Any:
        figure, axes = canvas(width=6.0, height=3.4)
        one, fixed = axes[0, 0], [row["policy"] for row in found.points if row["policy"] != HINTS]
        looks: dict[str, SeriesStyle | None] = {**styles_of(fixed), HINTS: None}
        for policy, look in looks.items():
            mine = [row for row in found.points if row["policy"] == policy]
            x, y = ([row[key] for row in mine] for key in ("rps", "latency_s"))
            if look is None:
                one.plot(x, y, "o-", color="black", linewidth=2.2, label="hinted")
            else:
                style = look.line
                one.plot(x, y, linewidth=1.0, label=f"K = {policy}", **style)
        one.set_ylim(0, 2.5 * max(row["best_s"] for row in found.loads))
        one.set_xlabel("load [requests/s]")
        one.set_ylabel("mean latency [s]")
        legend(figure, axes)
        return figure

    return save_figure(draw, path)
