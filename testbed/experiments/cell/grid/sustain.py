"""How many UEs a cell sustains, and what binds it, over values of its configuration."""

from __future__ import annotations

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
from testbed.experiments.cell.config import MOST_UES, CellConfig
from testbed.experiments.cell.grid.judged import CellOutcome, judged_counts, judged_run
from testbed.experiments.cell.grid.points import CellPoint, Row, Told, combinations, each_point, label
from testbed.experiments.results.claims import kept_under
from testbed.intervals import compared, independent_seed, paired_interval, repeats_interval
from testbed.options import Config, option

FIRST_STEP = 0.25
"""First step of a search from the number of UEs in the file, as a share of it."""


class SustainConfig(Config, frozen=True):
    """Configuration of `testbed cell sustain`.

    Raises:
        BadInput: a value out of range, a varied seed, or a cell in which nobody has a guaranteed token speed.
    """

    cell: CellConfig
    vary: dict[str, tuple[Any, ...]] = {}  # noqa: RUF012
    """Fields of the cell and their values: `radio.bandwidth_hz`, `ues.NAME.protocol`, `ues.*.window`."""
    ues: Annotated[
        tuple[int, ...], option("Numbers of decoding UEs to run. Default: search for the largest that is sustained.")
    ] = ()
    repeats: Annotated[int, option("Seeds of each point.", least=1, most=1000)] = 5
    epsilon: Annotated[float, option("Share of late responses that a class tolerates.", least=0, below=1)] = 0.05
    resolution: Annotated[
        float,
        option(
            "Last step of a search, as a share of the number of UEs, and at least one UE; 0: always one.",
            least=0, most=0.5,
        ),
    ] = 0.02  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_classes(self.cell)
        if "seed" in self.vary:
            raise BadInput("seeds are not varied: give the number of them as repeats, and the first as the cell's seed")
        if self.cell.models is not None:
            raise BadInput("cells with models are not searched; record their drafts (testbed cell drafts)")
        if not all(1 <= ues <= MOST_UES for ues in self.ues):
            raise BadInput(f"numbers of UEs lie in 1..{MOST_UES}")
        if self.ues:
            self.refuse_unused(("resolution",), "with --ues, where nothing is searched")


def sustain(config: SustainConfig, out: Path | None, workers: int, told: Told) -> list[Row]:
    """A row for each combination of the varied values, and for each number of UEs if those are given.

    Args:
        out: directory in which every run is kept, so that a second call goes on.
        workers: number of processes.

    Raises:
        BadInput: a field that does not exist, a value that it cannot have, or one by which nobody has a speed.
        EngineError: one of the processes was killed.
    """
    points = combinations(config.cell, config.vary)
    for point in points:
        _check_classes(point.cell)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    found = each_point(points, partial(point_rows, config, out=out), workers, told)
    return _compare(config, list(itertools.chain(*found)))


def _check_classes(cell: CellConfig) -> None:
    """Refuse a cell in which nobody has a guaranteed token speed.

    Raises:
        BadInput: so it is.
    """
    if not any(group.class_tps for group in cell.ues if group.traffic == "tokens"):
        raise BadInput("no group of UEs has a class_tps: nothing says what sustaining them means")


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


def point_rows(config: SustainConfig, point: CellPoint, out: Path | None) -> list[Row]:
    """Rows of one combination."""
    whole = bool(config.ues)

    def run(ues: int, seed: int) -> CellOutcome:
        cell = msgspec.structs.replace(crowded(point.cell, ues), seed=independent_seed(seed, ues))
        if out is None:
            return judged_run(cell, config.epsilon, whole)
        parts = [cell, config.epsilon, whole, judged_counts(cell)]
        return kept_under(out, parts, CellOutcome, lambda: judged_run(cell, config.epsilon, whole))

    seeds = range(config.cell.seed, config.cell.seed + config.repeats)
    if config.ues:
        return [point.labels | _at(ues, [run(ues, seed) for seed in seeds], config.epsilon) for ues in config.ues]
    given = sum(group.count for group in point.cell.ues if group.traffic == "tokens")
    found: list[int] = []
    ends: list[CellOutcome] = []
    for seed in seeds:
        guess, step = _beginning(given, found, config.resolution)
        job = largest(partial(_kept_classes, config.epsilon), guess, step, config.resolution)
        ues, end = _searched(job, partial(run, seed=seed))
        found.append(ues)
        ends.append(end)
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


def _beginning(given: int, found: Sequence[int], resolution: float) -> tuple[int, int]:
    """Number of UEs at which a search begins, and its first step: the median of the seeds before, and their standard
    deviation.
    """
    if not found:
        return given, max(1, round(FIRST_STEP * given))
    guess = max(1, round(statistics.median(found)))
    spread = statistics.stdev(found) if len(found) > 1 else FIRST_STEP / 4 * guess
    return guess, max(1, round(max(spread, resolution * guess)))


def _kept_classes(epsilon: float, ues: int) -> Generator[int, CellOutcome, bool]:
    """Whether all classes are kept.

    Raises:
        BadInput: too few responses were judged to tell, and not too many of them are late.
    """
    found = yield ues
    if found.late and _open(found, epsilon):
        counts = ", ".join(f"{name} {judged}" for name, (_, judged) in found.late.items())
        raise BadInput(f"{found.ues} UEs: too few responses were judged ({counts}): give the cell more seconds")
    return found.verdict == "kept"


def _searched(job: Generator[int, CellOutcome, int], run: Callable[[int], CellOutcome]) -> tuple[int, CellOutcome]:
    """The number of UEs that a search finds, and their run; if none are sustained, that of the fewest with a class."""
    runs: dict[int, CellOutcome] = {}
    try:
        ues = next(job)
        while True:
            runs[ues] = run(ues)
            ues = job.send(runs[ues])
    except StopIteration as end:
        ues = int(end.value)
        return ues, runs[ues or min(tried for tried, found in runs.items() if found.late)]


def _open(found: CellOutcome, epsilon: float) -> bool:
    """Whether too few responses were judged to tell, and not too many of them are late; also where none has a class."""
    late = all(late <= epsilon * judged for late, judged in found.late.values())
    return found.verdict == "undecided" and late


def _at(ues: int, runs: Sequence[CellOutcome], epsilon: float) -> Row:
    """Share of the seeds in which the classes are kept; None: that of some is open."""
    kept_share = sum(run.verdict == "kept" for run in runs) / len(runs)
    return {"ues": ues, "kept": None if any(_open(run, epsilon) for run in runs) else kept_share, **_means(runs)}


def _means(runs: Sequence[CellOutcome]) -> Row:
    """Means over seeds, and the resource that binds in most of them."""
    names = ("uplink_utilisation", "busy_share", "goodput_tps")
    (bound_by, _), *_ = Counter(run.bound_by for run in runs).most_common(1)
    return {"bound_by": bound_by, **{name: statistics.mean(getattr(run, name) for run in runs) for name in names}}
