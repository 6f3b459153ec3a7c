"""Capacity search: bisection over N, with searches in parallel; every run is saved so that a second call resumes."""

from __future__ import annotations

import concurrent.futures as futures
import functools
import hashlib
import json
import statistics
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from testbed.config import resolved
from testbed.errors import BadInput
from testbed.experiments.capacity.config import MOST_UES, CapacityConfig, hardware, speeds, spread
from testbed.experiments.capacity.run import run_capacity
from testbed.experiments.capacity.systems import System, system_of
from testbed.experiments.capacity.tally import ALL, ANY, CLEAR, CapacityRun
from testbed.experiments.inputs.profile import PassWork
from testbed.experiments.results.claims import kept
from testbed.experiments.runs.workers import pool_of

FIRST_STEP = 0.02
"""First step of a search away from its guess, as a share of it. Each further step is twice as long, and none goes below
half of N."""
P = TypeVar("P")
R = TypeVar("R")
CONDITIONS = ("systems", "classes", "mix", "ues", "repeats", "seed", "paper")
"""Configuration fields that are not part of a point's key."""


class CapacityPoint(NamedTuple):
    """One run."""

    config: CapacityConfig
    system: str
    classes: tuple[float, ...]
    """Token speed of each UE."""
    seed: int
    until: str = ALL
    events: bool = False

    @property
    def key(self) -> str:
        """Name of its file: digest of everything that the result depends on."""
        kept = {k: v for k, v in resolved(self.config).items() if k not in CONDITIONS}
        parts = [kept, self.system, self.classes, self.seed, self.until, self.events]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=10).hexdigest()


def run_point(point: CapacityPoint, directory: Path | None = None) -> CapacityRun:
    """Results of a run, from its file if that exists.

    Raises:
        BadInput: the file is damaged, or that of another run.
    """

    def run() -> CapacityRun:
        system = system_of(point.system)
        return run_capacity(point.config, system, point.classes, point.seed, until=point.until, events=point.events)

    if directory is None:
        return run()
    path = directory / f"{point.key}.json"
    found = kept(path, CapacityRun, run)
    if (found.system, found.ues, found.seed) != (point.system, len(point.classes), point.seed):
        raise BadInput(f"{path} is that of another run; remove it, and its result is computed again")
    return found


# ---------------------------------------------------------------- jobs in parallel

Job = Generator[CapacityPoint, CapacityRun, "object"]
"""Generator that yields points, is sent their runs, and returns its result."""
Told = Callable[[int, int, str], None]
"""Called after every run: finished jobs, number of jobs, description of the run."""


def run_jobs(jobs: Sequence[Job], workers: int, directory: Path | None, told: Told) -> list[object]:
    """Results of all jobs, in order.

    Args:
        workers: number of processes.

    Raises:
        EngineError: one of the processes was killed.
    """
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    if workers == 1 or len(jobs) == 1:
        return _one_by_one(jobs, directory, told)
    killed = "the process of a run was killed; with --out, the same call resumes"
    with pool_of(min(workers, len(jobs)), killed) as pool:
        return _at_once(pool, jobs, directory, told)


def _one_by_one(jobs: Sequence[Job], directory: Path | None, told: Told) -> list[object]:
    found = []
    for done, job in enumerate(jobs):

        def ran(run: CapacityRun, done: int = done) -> None:
            told(done, len(jobs), describe(run))

        found.append(_run_through(job, directory, ran))
        told(done + 1, len(jobs), "")
    return found


def _run_through(job: Job, directory: Path | None, ran: Callable[[CapacityRun], None]) -> object:
    try:
        point = next(job)
        while True:
            run = run_point(point, directory)
            ran(run)
            point = job.send(run)
    except StopIteration as end:
        return end.value


def _at_once(
    pool: futures.ProcessPoolExecutor, jobs: Sequence[Job], directory: Path | None, told: Told
) -> list[object]:
    found: list[object] = [None] * len(jobs)
    running: dict[futures.Future[CapacityRun], int] = {}
    ended = 0

    def go_on(number: int, advance: Callable[[], CapacityPoint]) -> int:
        try:
            running[pool.submit(run_point, advance(), directory)] = number
            return 0
        except StopIteration as end:
            found[number] = end.value
            return 1

    for number, job in enumerate(jobs):
        ended += go_on(number, functools.partial(next, job))
    while running:
        ready, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
        for future in ready:
            number, run = running.pop(future), future.result()
            ended += go_on(number, functools.partial(jobs[number].send, run))
            told(ended, len(jobs), describe(run))
    return found


def describe(run: CapacityRun) -> str:
    """Short description of a run."""
    shares = ", ".join(f"{speed}: {count.share or 0:.1%}" for speed, count in run.classes.items())
    return f"{run.system}, {run.ues} UEs, violated {shares}"


# ---------------------------------------------------------------- searches


class CapacityResult(NamedTuple):
    """A capacity."""

    by_seed: tuple[int, ...]
    runs: tuple[CapacityRun, ...]
    """The complete run of each seed at its capacity; none of a seed whose capacity is 0."""

    @property
    def ues(self) -> int:
        """Median over the seeds, rounded down."""
        return int(statistics.median(self.by_seed))


def largest(
    holds: Callable[[int], Generator[P, R, bool]], guess: int, step: int | None = None, resolution: float = 0.0
) -> Generator[P, R, int]:
    """The largest N that `holds`, which is assumed to be monotonic: steps away from the guess, then bisection.

    Args:
        step: first step. Default: a share `FIRST_STEP` of the guess.
        resolution: share of N by which the smallest number found not to hold may exceed N; it may always be N + 1.

    Raises:
        BadInput: even `MOST_UES` hold.
    """
    step = max(1, round(guess * FIRST_STEP)) if step is None else step
    low, high = (guess, MOST_UES + 1) if (yield from holds(guess)) else (0, guess)
    while high > MOST_UES:
        if low + step > MOST_UES:
            raise BadInput(f"more than {MOST_UES} UEs are sustained at this load")
        low, high = (low + step, high) if (yield from holds(low + step)) else (low, low + step)
        step *= 2
    while low == 0 and high > 1:
        at = max(high - step, high // 2)
        low, high = (at, high) if (yield from holds(at)) else (0, at)
        step *= 2
    while high - low > max(1, resolution * low):
        middle = (low + high) // 2
        low, high = (middle, high) if (yield from holds(middle)) else (low, middle)
    return low


def capacity_of(
    config: CapacityConfig, system: str, speed_tps: float
) -> Generator[CapacityPoint, CapacityRun, CapacityResult]:
    """Capacity of a class alone on the BS, by seed."""
    found: list[int] = []
    runs: list[CapacityRun] = []
    guess = guessed(config, system_of(system), speed_tps)
    for repeat in range(config.repeats):
        seed = config.seed + repeat

        def holds(ues: int, seed: int = seed) -> Generator[CapacityPoint, CapacityRun, bool]:
            run = yield CapacityPoint(config, system, (speed_tps,) * ues, seed, CLEAR)
            return run.holds(config.epsilon)

        found.append((yield from largest(holds, max(1, guess))))
        if found[-1]:
            runs.append((yield CapacityPoint(config, system, (speed_tps,) * found[-1], seed)))
        guess = int(statistics.median(found))
    return CapacityResult(tuple(found), tuple(runs))


def knees_of(config: CapacityConfig, system: str) -> Generator[CapacityPoint, CapacityRun, dict[float, CapacityResult]]:
    """Knee of each class in the mix: the largest total N at which that class keeps ε, by seed."""
    known: dict[tuple[int, int], CapacityRun] = {}
    knees: dict[float, list[int]] = {speed: [] for speed in speeds(config)}
    runs: dict[float, list[CapacityRun]] = {speed: [] for speed in knees}
    mean = sum(spread(config, 100)) / 100
    guess = guessed(config, system_of(system), mean)
    for repeat in range(config.repeats):
        for speed in sorted(knees, reverse=True):

            def holds(
                ues: int, seed: int = config.seed + repeat, speed: float = speed
            ) -> Generator[CapacityPoint, CapacityRun, bool]:
                if (ues, seed) not in known:
                    known[ues, seed] = yield CapacityPoint(config, system, tuple(spread(config, ues)), seed, ANY)
                return known[ues, seed].holds(config.epsilon, (f"{speed:g}",))

            ues = yield from largest(holds, max(1, guess))
            knees[speed].append(ues)
            guess = ues or guess
            if ues:
                seed = config.seed + repeat
                runs[speed].append((yield CapacityPoint(config, system, tuple(spread(config, ues)), seed)))
    return {speed: CapacityResult(tuple(by_seed), tuple(runs[speed])) for speed, by_seed in knees.items()}


def single(point: CapacityPoint) -> Generator[CapacityPoint, CapacityRun, CapacityRun]:
    """Job of a single run."""
    return (yield point)


def guessed(config: CapacityConfig, system: System, speed_tps: float) -> int:
    """First guess of a search, from full passes of average rounds and from the memory; does not affect the result."""
    cost = hardware(config).verify
    low, high = config.response
    mean, square = (low + high) / 2, ((high - low) ** 2 / 12 + ((low + high) / 2) ** 2)
    context = sum(config.prompt) / 2 + square / (2 * mean)
    alpha, window = config.acceptance, 0 if system.window is None else config.window
    chance = alpha * (config.tpr if system.window and system.window.withholds else 1.0)
    committed = window + 1.0 if chance == 1 else (1 - chance ** (window + 1)) / (1 - chance)
    new = window + (1 if system.memory.kept else context)
    work = PassWork(window, round(new), round(context) if system.memory.kept else 0)
    pass_s = cost.pass_s([work] * config.max_batch)
    ues = config.max_batch * committed / pass_s / speed_tps
    if system.memory.kept:
        ues = min(ues, 1.1 * config.kv_tokens / context)
    return max(1, round(0.9 * ues))


def all_points(points: Iterable[CapacityPoint]) -> list[Job]:
    """One job for each point."""
    return [single(point) for point in points]
