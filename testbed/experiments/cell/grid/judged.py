"""Runs of a cell that end once it is clear whether its classes are kept."""

from __future__ import annotations

import math
import statistics
from typing import Literal

import msgspec

from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.grid.quota import Quota, verdict_of, verdict_so_far
from testbed.experiments.cell.recorded import recording_of
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.results.claims import Count, Quantity, Share
from testbed.intervals import LEAST_JUDGED

SPARE = 1.5
"""Factor of the time in which all responses that are judged are expected to begin."""
LONGER = (1, 4)
"""Factors of that time: a run is repeated for longer if too few responses of a class were due."""
STEP_S = 0.25
"""Step at which a run may end."""


Binding = Literal["radio", "drafting", "verification"]


class CellOutcome(msgspec.Struct, frozen=True):
    """Result of one run."""

    ues: Count
    verdict: Literal["kept", "violated", "undecided"]
    """kept: every class had at most a share ε of late responses; violated; undecided: too few were judged."""
    seconds: Quantity
    """Time of the run after the warm-up."""
    bound_by: Binding
    uplink_utilisation: Share
    busy_share: Share
    goodput_tps: Quantity
    jain: Share | None
    late: dict[str, tuple[Count, Count]]
    """Late responses of each class, and the number of those that were judged."""


def judged_run(cell: CellConfig, epsilon: float, whole: bool = False) -> CellOutcome:
    """Run a cell until it is clear whether every class is kept by `judged_counts` of its responses.

    Args:
        whole: not less than the cell's time.
    """
    least_s = cell.seconds - cell.warmup_s if whole else 0.0
    for longer in LONGER:
        quotas = {name: Quota(count) for name, count in judged_counts(cell).items()}
        counted_s = longer * needed_s(cell)
        tried = msgspec.structs.replace(cell, seconds=cell.warmup_s + counted_s, step_s=min(STEP_S, counted_s))
        run = run_cell(
            tried,
            {name: quota.begin for name, quota in quotas.items()},
            lambda passed_s, quotas=quotas: passed_s >= least_s and verdict_of(quotas, epsilon) is not None,  # type: ignore[misc]
            channels_s=cell.seconds,
        )
        verdict = verdict_of(quotas, epsilon) or verdict_so_far(quotas, epsilon)
        if verdict != "undecided":
            break
    found = document(tried, run)["cell"]
    return CellOutcome(
        ues=sum(group.count for group in cell.ues if group.traffic == "tokens"),
        verdict=verdict,
        seconds=run.seconds,
        bound_by=found["bound_by"],
        uplink_utilisation=found["uplink_utilisation"],
        busy_share=found["busy_share"],
        goodput_tps=found["goodput_tps"],
        jain=found["jain"],
        late={name: (quota.violated, quota.judged) for name, quota in quotas.items()},
    )


def judged_counts(cell: CellConfig) -> dict[str, int]:
    """Responses by which each class is judged: those that begin in the cell's time at the slowest speed that keeps the
    class, and at least `LEAST_JUDGED`.
    """
    seconds = cell.seconds - cell.warmup_s
    return {
        group.name: max(LEAST_JUDGED, math.ceil(seconds * group.count / _each_s(group) - 1e-9))
        for group in _classes(cell)
    }


def needed_s(cell: CellConfig) -> float:
    """Time after the warm-up in which all these responses are due, with time to spare; without any, the cell's."""
    counts = judged_counts(cell)
    times_s = [
        SPARE * counts[group.name] * _each_s(group) / group.count + max(_lengths(group)) / (group.class_tps or 1.0)
        for group in _classes(cell)
    ]
    return max(times_s, default=cell.seconds - cell.warmup_s)


def _classes(cell: CellConfig) -> list[UeGroup]:
    return [group for group in cell.ues if group.class_tps and group.traffic == "tokens"]


def _each_s(group: UeGroup) -> float:
    """Time from the beginning of a response to that of the UE's next at the slowest speed that keeps the class."""
    each_s = statistics.mean(_lengths(group)) / (group.class_tps or 1.0) + group.think_s
    return each_s if group.rate_rps is None else max(each_s, 1 / group.rate_rps)


def _lengths(group: UeGroup) -> list[int]:
    """Tokens of responses: the bounds of uniform lengths, or those of a recording."""
    recording = recording_of(group)
    return list(group.response) if recording is None else [len(one.output) for one in recording.prompts]
