"""The paper's tables and figures from capacity runs, as CSV files and plots (WISP, Section 5).

Tables 2 and 3 and Fig. 7 come from the study's own rows; Tables 1, 5 and 6 and Fig. 8 need further runs, which
`--tables` adds. Figs. 9 and 11 are those of `testbed estimator eval`, on recorded passes.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from testbed.experiments.capacity.config import CapacityConfig, speeds, spread
from testbed.experiments.capacity.pooled import BASELINE, pooled, run_row
from testbed.experiments.capacity.search import CapacityPoint, Told, all_points, run_jobs
from testbed.experiments.capacity.tally import CapacityRun, RoundEvent
from testbed.experiments.deployment.traffic_ue import LANGUAGE, Chance, TrafficSequence, policy
from testbed.experiments.plots import capacity as plots
from testbed.experiments.plots.style import save_figure
from testbed.experiments.results.csv_file import write_csv
from testbed.intervals import repeats_interval
from testbed.options import replaced
from testbed.ue.windows.base import window_of
from testbed.ue.windows.predicted import BEFORE

Row = dict[str, Any]
TABLE_5 = {"Qwen3-0.6B": (0.31, 0.48), "Qwen3-1.7B": (0.42, 0.63), "Qwen3-4B": (0.47, 0.66), "Qwen3-8B": (0.53, 0.71)}
"""Accepted share of the drafted tokens without and with the predictor, as printed in the paper."""
TABLE_6 = {2: 0.2045, 4: 0.2514, 8: 0.2549, 16: 0.3003}
TABLE_1 = {"wisp": {8.0: 0.9827, 6.0: 0.8210, 4.0: 0.1080, 2.0: 0.0},
           "fcfs-cache": {8.0: 0.9835, 6.0: 0.9415, 4.0: 0.3645, 2.0: 0.0}}  # fmt: skip
"""Share of violated requests by class, as printed in the paper."""
TABLE_3 = {"sled": 170.82, "centralized": 326.12, "wisp": 631.86}
GOODPUT = ("goodput_tps", "goodput_low", "goodput_high")
ANCHOR = 0.98
MIX = {2.0: 1, 4.0: 1, 6.0: 1, 8.0: 1}
FEW = tuple(TABLE_6)
FEW_S = 180.0
"""Time over which Table 6 counts tokens; its responses are not judged."""
SWEPT = tuple(range(10, 211, 20))
SHOWN = 150
"""UEs of Fig. 8, one of `SWEPT`: beyond the knee, so that violations occur."""
WINDOWS = 100_000
"""Random windows for each row of Table 5."""
SPIKE, RECENT = 1.5, 20
"""τ of eq. 21, and the window W of its moving mean in passes; the paper gives τ as an example, and no W."""


def acceptance_of(share: float, window: int) -> float:
    """α at which a share of the tokens of fixed windows is accepted: Σ α^i / K = share, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(1, window + 1)) / window < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def table_5(config: CapacityConfig) -> list[Row]:
    """Accepted share of the drafted tokens by draft model, with and without the predictor.

    α follows from the paper's column OFF at K, and the column ON from the predictor's rates: as a share of the tokens
    sent, and of the tokens drafted, which include those left out.
    """
    rows = []
    for model, (off, on) in TABLE_5.items():
        alpha = acceptance_of(off, config.window)
        sent, drafted, accepted = _windows(replaced(config, {"acceptance": alpha}))
        rows.append(
            {"draft_model": model, "acceptance": alpha, "off_paper": off, "off": off, "on_paper": on,
             "on": accepted / sent, "on_of_drafted": accepted / drafted, "gain_paper": on / off - 1,
             "gain": accepted / sent / off - 1}
        )  # fmt: skip
    return rows


def _windows(config: CapacityConfig) -> tuple[int, int, int]:
    """Tokens sent, drafted and accepted in many predicted windows."""
    chance, rule = Chance(config.chances, config.seed), policy(config.chances, BEFORE, config.window, config.shortest)
    sent = drafted = accepted = 0
    for _ in range(WINDOWS):
        sequence = TrafficSequence(chance, 0)
        tokens = [sequence.draft_one()]
        while len(tokens) < rule.max_window and rule.keep_drafting(tokens):
            tokens.append(sequence.draft_one())
        right = [token.id == LANGUAGE[place] for place, token in enumerate(tokens[: window_of(rule, tokens)])]
        accepted += right.index(False) if False in right else len(right)
        sent, drafted = sent + len(right), drafted + len(tokens)
    return sent, drafted, accepted


def attributed(events: Sequence[RoundEvent]) -> list[Row]:
    """Each verified round with the cause of its violation (eq. 21): `compute` if its pass took more than `SPIKE` times
    the mean of the `RECENT` passes before it, else `queue`; empty if the round was in time.
    """
    recent: deque[float] = deque(maxlen=RECENT)
    mean_s = last_s = math.nan
    rows = []
    for queue_s, verify_s, violated in events:
        if verify_s != last_s:  # rounds of one pass took the same
            mean_s, last_s = statistics.fmean(recent) if recent else verify_s, verify_s
            recent.append(verify_s)
        spike = verify_s / mean_s > SPIKE
        cause = ("compute" if spike else "queue") if violated else ""
        rows.append({"queue_s": queue_s, "verify_s": verify_s, "cause": cause})
    return rows


# ---------------------------------------------------------------- further runs


def extra_points(config: CapacityConfig) -> dict[str, list[CapacityPoint]]:
    """Runs that `--tables` adds, of every seed: goodput of few UEs with and without the predictor (Table 6), and
    violations over N in the mix (Table 1, Fig. 7) of the two systems that the paper compares, with all rounds of `wisp`
    at one N (Fig. 8).
    """
    mixed, seeds = replaced(config, {"mix": config.mix or MIX}), range(config.seed, config.seed + config.repeats)
    fastest = max(speeds(config))
    counted = replaced(config, {"horizon_s": FEW_S, "judged": 1, "judged_class": 0})
    few = [
        CapacityPoint(counted, system, (fastest,) * n, seed)
        for seed in seeds for n in FEW for system in ("wisp-fixed", "wisp")
    ]  # fmt: skip
    many = [
        CapacityPoint(mixed, system, tuple(spread(mixed, n)), seed, events=(system, n) == ("wisp", SHOWN))
        for seed in seeds for system in TABLE_1 for n in SWEPT
    ]  # fmt: skip
    return {"table6": few, "fig7": many}


def run_extras(config: CapacityConfig, workers: int, directory: Path, told: Told) -> dict[str, list[CapacityRun]]:
    """Results of `extra_points`."""
    wanted = extra_points(config)
    jobs = all_points(point for points in wanted.values() for point in points)
    runs = iter(cast(list[CapacityRun], run_jobs(jobs, workers, directory, told)))
    return {name: [next(runs) for _ in points] for name, points in wanted.items()}


def table_6(runs: Sequence[CapacityRun]) -> list[Row]:
    """Gain of goodput by the predictor, by number of UEs, with its interval over the seeds, and the paper's, which does
    not give its setting.
    """
    rows = []
    for n in sorted({run.ues for run in runs}):
        off, on = ([r.goodput_tps for r in runs if (r.ues, r.system) == (n, s)] for s in ("wisp-fixed", "wisp"))
        gain = repeats_interval([with_ / without - 1 for with_, without in zip(on, off, strict=True)])
        low, high = gain.ends
        rows.append(
            {"ues": n, "off_tps": statistics.fmean(off), "on_tps": statistics.fmean(on), "gain": gain.value,
             "gain_low": low, "gain_high": high, "seeds": len(on), "gain_paper": TABLE_6.get(n)}
        )  # fmt: skip
    return rows


def table_1(rows: Sequence[Row]) -> list[Row]:
    """Pooled rows at the smallest N at which first come, first served violates its fastest class as much as in the
    paper (98.35 %), which does not give its N, beside the paper's shares.
    """
    fastest = max(row["class_tps"] for row in rows)
    anchors = [
        row["ues"] for row in rows
        if row["system"] == BASELINE and row["class_tps"] == fastest and row["violation"] >= ANCHOR
    ]  # fmt: skip
    return [
        {**row, "violation_paper": TABLE_1.get(row["system"], {}).get(row["class_tps"])}
        for row in rows if anchors and row["ues"] == min(anchors)
    ]  # fmt: skip


def figure_8(runs: Sequence[CapacityRun]) -> list[Row]:
    """Late rounds by cause (eq. 21), for each seed; runs without events are left out."""
    rows = []
    for run in runs:
        if run.events is None:
            continue
        causes = Counter(row["cause"] for row in attributed(run.events))
        late = causes["queue"] + causes["compute"]
        share = causes["compute"] / late if late else None
        rows.append({"seed": run.seed, "ues": run.ues, "rounds": causes.total(), "late": late, "compute_share": share})
    return rows


def table_3(rows: Sequence[Row]) -> list[Row]:
    """Goodput at the capacity of the fastest class; the paper does not give its setting."""
    fastest = max((row["class_tps"] for row in rows), default=0)
    return [
        {"system": row["system"], "ues": row["capacity"], **{name: row[name] for name in GOODPUT if name in row},
         "goodput_paper": TABLE_3.get(row["system"])}
        for row in rows if row["class_tps"] == fastest
    ]  # fmt: skip


# ---------------------------------------------------------------- files


def write_study(document: Mapping[str, Any], config: CapacityConfig, out: Path) -> None:
    """Write tables and plots of a study's own rows: Tables 2 and 3, or violations over N (Fig. 7)."""
    rows = document["rows"]
    write_csv(out / "rows.csv", rows)
    if "pooled" in document:
        write_csv(out / "pooled.csv", document["pooled"])
    elif any("varied" in row for row in rows):
        if len({row["system"] for row in rows}) > 1:
            save_figure(lambda: plots.factors(rows), out / "sensitivity.png")
        return
    if all("capacity" in row for row in rows):
        name = "table2" if config.mix is None else "knees"
        write_csv(out / f"{name}.csv", rows)
        counted = "UEs sustained" if config.mix is None else "UEs of all classes at the knee"
        save_figure(lambda: plots.capacities(rows, counted), out / f"{name}.png")
        if config.mix is None:
            write_csv(out / "table3.csv", table_3(rows))
    elif len({row["ues"] for row in rows}) > 1:
        shares = [
            {"system": row["system"], "ues": row["ues"], "class_tps": float(speed), "violation": share}
            for row in rows
            for speed, share in row["violations"].items()
        ]
        write_csv(out / "fig7.csv", shares)
        save_figure(lambda: plots.violations(shares, config.epsilon), out / "fig7.png")


def write_extras(runs: dict[str, list[CapacityRun]], config: CapacityConfig, out: Path) -> None:
    """Write Tables 1, 5 and 6, and Figs. 7 and 8; the plot of Fig. 8 is that of the first seed."""
    loads = pooled([run_row(run, config.epsilon) for run in runs["fig7"]], config.epsilon)
    write_csv(out / "fig7.csv", loads)
    save_figure(lambda: plots.violations(loads, config.epsilon), out / "fig7.png")
    write_csv(out / "table1.csv", table_1(loads))
    write_csv(out / "table5.csv", table_5(config))
    write_csv(out / "table6.csv", table_6(runs["table6"]))
    write_csv(out / "fig8_causes.csv", figure_8(runs["fig7"]))
    rounds = attributed(next(run.events for run in runs["fig7"] if run.events is not None))
    write_csv(out / "fig8.csv", rounds)
    save_figure(lambda: plots.plane(rounds), out / "fig8.png")
