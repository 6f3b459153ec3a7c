"""Runs of a cell over values of its configuration: rows per group, with intervals over seeds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.grid.judged import Binding
from testbed.experiments.cell.grid.points import CellPoint, Row, Told, combinations, each_point, label
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.cell.several.workers import Spread
from testbed.experiments.results.claims import Quantity, Share, kept_under
from testbed.intervals import compared, paired_interval, repeats_interval
from testbed.options import Config, option

FIGURES = ("goodput_tps", "latency_s", "violations", "uplink_mbps", "message_delay_s", "accuracy_lost")
"""Figures of a group that rows have with their intervals."""
MEANS = (
    "latency_p95_s", "window", "acceptance_cond", "kept_share", "same_share", "accuracy", "csi_error_db",
    "joules_per_token",
)  # fmt: skip
"""Figures of a group that rows have as means."""
MOVES = (
    "handovers_per_ue", "ping_pongs_per_ue", "interruption_s", "prefilled_again", "moved_bytes", "failures_per_ue",
)  # fmt: skip
"""The same where there are several cells."""
OF_THE_CELL = ("uplink_utilisation", "busy_share", "jain")

_Known = Quantity | None
"""A figure; None: it is not known."""
_Delays = msgspec.defstruct("_Delays", [("mean", _Known)])
_Group = msgspec.defstruct(
    "_Group",
    [
        ("group", str),
        ("ues", Annotated[int, msgspec.Meta(ge=0)]),
        *((name, _Known | _Delays if name == "message_delay_s" else _Known) for name in (*FIGURES, *MEANS)),
        *((name, _Known, None) for name in MOVES),
    ],
)
_Whole = msgspec.defstruct("_Whole", [("bound_by", Binding), *((name, Share | None) for name in OF_THE_CELL)])
_Kept = msgspec.defstruct("_Kept", [("rows", list[_Group]), ("cell", _Whole)])  # type: ignore[valid-type]
"""What rows are made of in the document of a run that was kept."""


class CellSweepConfig(Config, frozen=True):
    """Configuration of `testbed cell sweep`."""

    cell: CellConfig
    vary: dict[str, tuple[Any, ...]] = {}  # noqa: RUF012
    """Fields of the cell and their values, see `combinations`."""
    repeats: Annotated[int, option("Seeds of each combination.", least=1, most=1000)] = 3


def sweep_cell(
    config: CellSweepConfig,
    out: Path | None,
    workers: int,
    told: Told,
    spread: Spread = Spread(),  # noqa: B008
) -> list[Row]:
    """A row for each combination of the varied values and each group.

    Args:
        out: directory in which every run is kept, so that a second call goes on.
        workers: number of processes among which the combinations are divided.
        spread: processes among which the base stations of each run are divided.

    Raises:
        BadInput: a field that does not exist, a value that it cannot have, or see `run_cell`.
        EngineError: one of the processes was killed.
    """
    points = combinations(config.cell, config.vary)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    found = each_point(points, partial(_point_rows, config.repeats, out, spread), workers, told)
    rows = list(itertools.chain(*found))
    for row in rows:
        _compare(config, rows, row)
    return [{name: value for name, value in row.items() if name != "by_seed"} for row in rows]


def _point_rows(repeats: int, out: Path | None, spread: Spread, point: CellPoint) -> list[Row]:
    """Rows of one combination; the seeds are those of the other combinations."""
    first = point.cell.seed
    cells = [msgspec.structs.replace(point.cell, seed=first + repeat) for repeat in range(repeats)]
    runs = [_run(cell, out, spread) for cell in cells]
    (bound_by, _), *_ = Counter(run["cell"]["bound_by"] for run in runs).most_common(1)
    whole = {name: _mean([run["cell"][name] for run in runs]) for name in OF_THE_CELL}
    groups = zip(*(run["rows"] for run in runs), strict=True)
    return [point.labels | _group_row(rows) | {"bound_by": bound_by} | whole for rows in groups]


def _run(cell: CellConfig, out: Path | None, spread: Spread) -> dict[str, Any]:
    def run() -> dict[str, Any]:
        return document(cell, run_cell(cell, spread=spread))

    if out is None:
        return run()
    return kept_under(out, cell, dict[str, Any], run, lambda found: msgspec.convert(found, _Kept))


def _group_row(rows: Sequence[Row]) -> Row:
    """A group's row over the seeds."""
    row: Row = {"group": rows[0]["group"], "ues": rows[0]["ues"], "n": len(rows)}
    for name in FIGURES:
        values = [one[name]["mean"] if isinstance(one[name], dict) else one[name] for one in rows]
        known = None not in values
        low, high = repeats_interval(values).ends if known else (None, None)
        row |= {name: _mean(values), f"{name}_low": low, f"{name}_high": high}
    means = [*MEANS, *(name for name in MOVES if name in rows[0])]
    row |= {name: _mean([one[name] for one in rows]) for name in means}
    return row | {"by_seed": [one["goodput_tps"] for one in rows]}


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean; None if a value is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _compare(config: CellSweepConfig, rows: Sequence[Row], row: Row) -> None:
    """Add the difference of the goodput to the one with the first value of the last varied field, paired by seed."""
    if not config.vary or None in row["by_seed"]:
        return
    last = list(config.vary)[-1]
    same = [*list(config.vary)[:-1], "group"]
    wanted = {name: row[name] for name in same} | {last: label(config.vary[last][0])}
    base = next(one for one in rows if all(one[name] == value for name, value in wanted.items()))
    if base is not row:
        found = paired_interval(row["by_seed"], base["by_seed"])
        low, high = found.ends
        row |= {"difference": found.value, "difference_low": low, "difference_high": high, "verdict": compared(found)}
