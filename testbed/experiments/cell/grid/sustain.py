"""How many UEs a cell sustains, and what binds it, over values of its configuration."""

from __future__ import annotations

import hashlib
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from testbed.errors import BadInput
from testbed.experiments.capacity.config import dealt
from testbed.experiments.capacity.search import largest
from testbed.experiments.cell.config import MOST_UES, CellConfig, UeGroup
from testbed.experiments.cell.grid.points import CellPoint, Row, Told, combinations, each_point, label
from testbed.experiments.cell.recorded import recording_of
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.results.claims import kept
from testbed.intervals import LEAST_JUDGED, class_verdict, compared, independent_seed, paired_interval, repeats_interval
from testbed.options import Config, option

LONGEST = 64.0
"""Limit of the factor by which runs are prolonged until every class has been judged often enough."""
SPARE, LEAP = 1.2, 8.0
"""Factor beyond the time in which enough responses are expected, and limit of one prolongation."""


class SustainConfig(Config, frozen=True):
    """Configuration of `testbed cell sustain`.

    Raises:
        BadInput: a value out of range, or a cell in which nobody has a guaranteed token speed.
    """

    cell: CellConfig
    vary: dict[str, tuple[Any, ...]] = {}  # noqa: RUF012
    """Fields of the cell and their values: `radio.bandwidth_hz`, `ues.NAME.protocol`, `ues.*.window`."""
    ues: Annotated[
        tuple[int, ...], option("Numbers of decoding UEs to run. Default: search for the largest that is sustained.")
    ] = ()
    repeats: Annotated[int, option("Seeds of each point.", least=1, most=1000)] = 5
    epsilon: Annotated[float, option("Share of late responses that a class tolerates.", least=0, below=1)] = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(group.class_tps for group in self.cell.ues if group.traffic == "tokens"):
            raise BadInput("no group of UEs has a class_tps: nothing says what sustaining them means")
        if not all(1 <= ues <= MOST_UES for ues in self.ues):
            raise BadInput(f"numbers of UEs lie in 1..{MOST_UES}")


class CellOutcome(msgspec.Struct, frozen=True):
    """Result of one run."""

    ues: int
    verdict: str
    """kept: every class had at most a share ε of late responses; violated; undecided: too few were judged."""
    bound_by: str
    uplink_utilisation: float
    busy_share: float
    goodput_tps: float
    jain: float | None
    violations: dict[str, float]
    """Share of late responses of each group with a class."""


def sustain(config: SustainConfig, out: Path | None, workers: int, told: Told) -> list[Row]:
    """A row for each combination of the varied values, and for each number of UEs if those are given.

    Args:
        out: directory in which every run is kept, so that a second call goes on.
        workers: number of processes.

    Raises:
        BadInput: a field that does not exist, or a value that it cannot have.
        EngineError: one of the processes was killed.
    """
    points = combinations(config.cell, config.vary)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    found = each_point(points, partial(point_rows, config, out=out), workers, told)
    return _compare(config, list(itertools.chain(*found)))


def _compare(config: SustainConfig, rows: list[Row]) -> list[Row]:
    """Add to each row of a search its difference to the one with the first value of the last varied field, paired by
    seed, and a verdict.
    """
    if config.ues or not config.vary:
        return rows
    *others, last = config.vary
    base = {tuple(row[name] for name in others): row for row in rows if row[last] == label(config.vary[last][0])}
    for row in rows:
        theirs = base[tuple(row[name] for name in others)]
        if row is not theirs:
            found = paired_interval(row["ues_by_seed"], theirs["ues_by_seed"])
            low, high = found.ends
            row |= {"difference": found.value, "difference_low": low, "difference_high": high,
                    "verdict": compared(found)}  # fmt: skip
    return rows


def crowded(cell: CellConfig, ues: int) -> CellConfig:
    """The cell with `ues` decoding UEs, dealt to its groups in proportion to their counts; groups of bytes stay."""
    shares = {number: group.count for number, group in enumerate(cell.ues) if group.traffic == "tokens"}
    given = Counter(int(number) for number in dealt({float(number): share for number, share in shares.items()}, ues))
    groups = [
        msgspec.structs.replace(group, count=given[number]) if number in shares else group
        for number, group in enumerate(cell.ues)
        if number not in shares or given[number]
    ]
    return msgspec.structs.replace(cell, ues=tuple(groups))


def judged_run(cell: CellConfig, epsilon: float) -> CellOutcome:
    """Run a cell, and again for longer while a class has too few responses to be judged."""
    longer = 1.0
    while True:
        seconds = cell.warmup_s + longer * (cell.seconds - cell.warmup_s)
        tried = msgspec.structs.replace(cell, seconds=seconds)
        found = document(tried, run_cell(tried))
        classes = [row for row in found["rows"] if row["judged"] is not None]
        verdicts = {_verdict(row["violated"], row["judged"], epsilon) for row in classes}
        verdict = next((one for one in ("violated", "undecided") if one in verdicts), "kept")
        if verdict != "undecided" or longer >= LONGEST:
            break
        fewest = max(1, min(row["judged"] for row in classes))
        more = longer * min(LEAP, SPARE * max(1.0, LEAST_JUDGED / fewest))
        enough = needed_s(cell) / (cell.seconds - cell.warmup_s)
        longer = min(LONGEST, more if enough <= longer else min(more, enough))
    whole = found["cell"]
    return CellOutcome(
        ues=sum(group.count for group in cell.ues if group.traffic == "tokens"),
        verdict=verdict,
        bound_by=whole["bound_by"],
        uplink_utilisation=whole["uplink_utilisation"],
        busy_share=whole["busy_share"],
        goodput_tps=whole["goodput_tps"],
        jain=whole["jain"],
        violations={row["group"]: row["violations"] for row in classes if row["violations"] is not None},
    )


def needed_s(cell: CellConfig) -> float:
    """Time after the warm-up in which enough responses of every class are due, at the slowest speed that keeps it."""
    return max(_group_needs_s(group) for group in cell.ues if group.class_tps and group.traffic == "tokens")


def _group_needs_s(group: UeGroup) -> float:
    recording, tps = recording_of(group), group.class_tps or 1.0
    lengths = list(group.response) if recording is None else [len(one.output) for one in recording.prompts]
    each_s = statistics.mean(lengths) / tps + group.think_s
    if group.rate_rps is not None:
        each_s = max(each_s, 1 / group.rate_rps)
    return max(lengths) / tps + SPARE * LEAST_JUDGED * each_s / group.count


def _verdict(violated: int, judged: int, epsilon: float) -> str:
    """The verdict of `class_verdict`, known once enough of the first responses are violated in any case."""
    return class_verdict(violated, max(judged, LEAST_JUDGED) if violated > epsilon * LEAST_JUDGED else judged, epsilon)


def point_rows(config: SustainConfig, point: CellPoint, out: Path | None) -> list[Row]:
    """Rows of one combination."""

    def run(ues: int, seed: int) -> CellOutcome:
        cell = msgspec.structs.replace(crowded(point.cell, ues), seed=independent_seed(seed, ues))
        if out is None:
            return judged_run(cell, config.epsilon)
        key = hashlib.blake2b(msgspec.json.encode([cell, config.epsilon]), digest_size=10).hexdigest()
        path = out / f"{key}.json"
        return kept(path, CellOutcome, lambda: judged_run(cell, config.epsilon))

    seeds = range(config.cell.seed, config.cell.seed + config.repeats)
    if config.ues:
        return [point.labels | _at(ues, [run(ues, seed) for seed in seeds]) for ues in config.ues]
    found: list[int] = []
    ends: list[CellOutcome] = []
    given = sum(group.count for group in point.cell.ues if group.traffic == "tokens")
    for seed in seeds:
        found.append(_search(lambda ues, seed=seed: run(ues, seed), found[-1] if found else given))  # type: ignore[misc]
        ends.append(run(max(1, found[-1]), seed))
    mean = repeats_interval(found)
    low, high = mean.ends
    row = {
        "ues": statistics.median(found),
        "ues_mean": mean.value,
        "ues_low": low,
        "ues_high": high,
        "ues_by_seed": found,
    }
    return [point.labels | _means(ends) | row]


def _search(run: Callable[[int], CellOutcome], guess: int) -> int:
    """The largest number of UEs whose classes are all kept."""

    def holds(ues: int) -> Generator[int, CellOutcome, bool]:
        found = yield ues
        return found.verdict == "kept"

    job = largest(holds, max(1, guess))
    try:
        ues = next(job)
        while True:
            ues = job.send(run(ues))
    except StopIteration as end:
        return int(end.value)


def _at(ues: int, runs: Sequence[CellOutcome]) -> Row:
    kept_share = sum(run.verdict == "kept" for run in runs) / len(runs)
    return {"ues": ues, "kept": kept_share, **_means(runs)}


def _means(runs: Sequence[CellOutcome]) -> Row:
    """Means over seeds, and the resource that binds in most of them."""
    names = ("uplink_utilisation", "busy_share", "goodput_tps")
    (bound_by, _), *_ = Counter(run.bound_by for run in runs).most_common(1)
    return {"bound_by": bound_by, **{name: statistics.mean(getattr(run, name) for run in runs) for name in names}}
