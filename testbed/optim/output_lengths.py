"""Batches of tasks whose output lengths are known, and of tasks whose UEs draft (beyond edge SD batching).

A task leaves its batch after its own ⌈O_k / L⌉ steps (eq. 8), so that b in eqs. 17–19 falls from step to step; a batch
without tasks takes no time (eqs. 20, 21). Padding stays that of the batch's longest input (eqs. 13, 14), and memory is
reserved for O_max (eq. 24b). Where UEs draft, T^d of a batch is that of one task, and drafting of one batch does not
delay that of another: eq. 20 becomes C_n = max_m (T^d_m + Σ_{i≥m} T^v_i).

Runs of tasks in input order no longer contain an optimum. Batches are found by local search over all partitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from testbed.errors import BadInput
from testbed.optim.baselines import Runs, batch_by, fitting
from testbed.optim.inference_cost import Array, IntArray, ServedPair, draft_s, most_tasks, steps_needed, verify_s
from testbed.optim.planner import Batching, plan_batches, windows

TIMED = ("dp", "fixed-window", "no-batching", "static", "max", "heuristic")
"""Planners that form batches by O_max, and whose batches can be timed with known lengths."""
TRIALS = 20_000
"""Most plans that the search evaluates at one window."""
GAIN = 1e-9
"""Smallest relative gain; below it the search ends."""


class TimedTasks:
    """Step times of tasks at one window.

    Args:
        serving: models, hardware and α.
        inputs: [K] input tokens.
        outputs: [K] output tokens.
        window: l
        on_ues: whether the UEs draft, each for itself; otherwise one node drafts for all.

    Raises:
        BadInput: a task does not fit into memory alone.
    """

    def __init__(self, serving: ServedPair, inputs: IntArray, outputs: IntArray, window: int, on_ues: bool) -> None:
        self.inputs, self.on_ues = inputs, on_ues
        self.most = most_tasks(serving, inputs)
        """[K] largest size of a batch whose longest input is that of each task."""
        self.steps = np.array([steps_needed(int(tokens), serving.alpha, window) for tokens in outputs])
        """[K] steps of each task."""
        step: IntArray = np.arange(1, int(self.steps.max()) + 1)
        self._active: npt.NDArray[np.bool_] = step <= self.steps[:, None]
        lengths = inputs[:, None]
        self._draft_fixed, self._verify_fixed = window * serving.cost.c2_draft, serving.cost.c2_verify
        self._draft = draft_s(serving, 1, lengths, step, window) - self._draft_fixed
        self._verify = verify_s(serving, 1, lengths, step, window) - self._verify_fixed

    def fits(self, batch: Sequence[int]) -> bool:
        """Whether a batch fits into memory (eq. 24b)."""
        return len(batch) <= int(self.most[list(batch)].min())

    def latency_s(self, batches: Runs) -> float:
        """T_inf of batches in pipeline order (eq. 22)."""
        drafting, verifying = (np.array(each) for each in zip(*map(self._times, batches), strict=True))
        drafted = drafting if self.on_ues else drafting.cumsum(axis=0)
        left = verifying[::-1].cumsum(axis=0)[::-1]
        return float((drafted + left).max(axis=0).sum())

    def _times(self, batch: Sequence[int]) -> tuple[Array, Array]:
        """[N] draft and [N] verify times of a batch."""
        tasks = np.asarray(batch)
        longest = tasks[self.inputs[tasks].argmax()]
        size = self._active[tasks].sum(axis=0)
        drafting = self._draft[longest] * (1 if self.on_ues else size) + self._draft_fixed
        return drafting * (size > 0), (self._verify[longest] * size + self._verify_fixed) * (size > 0)


def plan_by_lengths(
    serving: ServedPair,
    inputs: IntArray,
    outputs: IntArray | None,
    algorithm: str = "best",
    window: int | None = None,
    on_ues: bool = False,
) -> Batching:
    """Window and batches with known output lengths, or with drafting on the UEs.

    Args:
        outputs: [K] output tokens, at most O_max; None: O_max for all.
        algorithm: best, the local search; or one of `TIMED`, whose batches are timed with the lengths.
        window: l; None: the best one, for those in `TIMED` by their own model.

    Raises:
        BadInput: an algorithm without a model of this, a window out of range, or a task that does not fit.
    """
    lengths = np.full(len(inputs), serving.max_output_tokens) if outputs is None else outputs
    if algorithm in TIMED:
        formed = batch_by(algorithm, serving, inputs, window)
        timed = TimedTasks(serving, inputs, lengths, formed.window, on_ues)
        return formed._replace(inference_s=timed.latency_s([list(batch) for batch in formed.batches]))
    if algorithm != "best":
        raise BadInput(f"{algorithm} knows neither output lengths nor drafting on UEs; take best or {', '.join(TIMED)}")
    found = []
    for tokens in windows(serving, window):
        timed = TimedTasks(serving, inputs, lengths, tokens, on_ues)
        seconds, runs = min(_improved(timed, start) for start in _starts(serving, timed, tokens))
        found.append(Batching(tokens, tuple(map(tuple, runs)), seconds))
    return min(found, key=lambda one: (one.inference_s, one.window))


def _starts(serving: ServedPair, timed: TimedTasks, window: int) -> list[Runs]:
    """Plans that the search starts from: Algorithm 1's, the fewest batches in order of steps, and single tasks."""
    tasks = len(timed.inputs)
    by_steps = np.lexsort((timed.inputs, timed.steps))
    fewest = fitting(serving, timed.inputs[by_steps], tasks)
    starts = [
        [list(batch) for batch in plan_batches(serving, timed.inputs, "dp", window).batches],
        [by_steps[run].tolist() for run in fewest],
        [[k] for k in by_steps.tolist()],
    ]
    return [runs for runs in starts if len(runs) <= 8 or runs is starts[0]]


def _improved(timed: TimedTasks, runs: Runs) -> tuple[float, Runs]:
    """Local search: the first better plan in random order, until there is none."""
    rng = np.random.default_rng(0)
    best_s, left = timed.latency_s(runs), TRIALS
    improved = True
    while improved and left > 0:
        improved = False
        moves = list(_moves(len(timed.inputs), len(runs)))
        for number in rng.permutation(len(moves)).tolist():
            candidate = _moved(runs, *moves[number])
            if candidate is None or not all(map(timed.fits, candidate)):
                continue
            left -= 1
            if (candidate_s := timed.latency_s(candidate)) < best_s * (1 - GAIN):
                best_s, runs, improved = candidate_s, candidate, True
                break
            if left <= 0:
                break
    return best_s, runs


def _moves(tasks: int, batches: int) -> Iterator[tuple[str, int, int]]:
    """Moves of one step: a task into another or a new batch, two tasks or two batches exchanged, two batches merged."""
    yield from (("into", k, b) for k in range(tasks) for b in range(batches))
    yield from (("new", k, place) for k in range(tasks) for place in range(batches + 1))
    yield from (("tasks", a, b) for a, b in itertools.combinations(range(tasks), 2))
    for a, b in itertools.permutations(range(batches), 2):
        yield "merge", a, b
        if a < b:
            yield "batches", a, b


def _moved(runs: Runs, kind: str, a: int, b: int) -> Runs | None:
    """The plan after a move; None: the move changes nothing."""
    new = [list(run) for run in runs]
    if kind == "batches":
        new[a], new[b] = new[b], new[a]
    elif kind == "merge":
        new[b] += new[a]
        new[a] = []
    else:
        home = {k: number for number, run in enumerate(runs) for k in run}
        if kind == "tasks":
            if home[a] == home[b]:
                return None
            new[home[a]][new[home[a]].index(a)], new[home[b]][new[home[b]].index(b)] = b, a
        elif kind == "into" and home[a] == b:
            return None
        else:
            new[home[a]].remove(a)
            new.insert(b, [a]) if kind == "new" else new[b].append(a)
    return [run for run in new if run]
