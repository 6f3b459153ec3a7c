"""Reference implementations for batching: a pipeline simulated event by event, the paper's Algorithm 1 with the
errata's corrections, and brute force over all batches in all orders.

They share no code with the package. FLOPs are counted from the matrices of a forward pass.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Node:
    """A model and the hardware under it."""

    layers: int
    hidden: int
    ffn: int
    c1: float
    c2: float

    def matrices(self, new: float, context: float) -> float:
        """FLOPs of `new` rows that attend to `context` positions: 2abc for every product of a×b and b×c."""
        projections = 4 * (2 * new * self.hidden * self.hidden)
        attention = 2 * new * self.hidden * context + 2 * new * context * self.hidden
        feed_forward = 2 * (2 * new * self.hidden * self.ffn)
        return self.layers * (projections + attention + feed_forward)


@dataclass(frozen=True)
class Instance:
    """Tasks, models, hardware."""

    inputs: tuple[int, ...]
    draft: Node
    verify: Node
    memory_bytes: float
    output_tokens: int
    alpha: float

    def steps(self, window: int, output_tokens: int | None = None) -> int:
        """Decoding steps until the sum of their expected tokens reaches O."""
        got, steps = 0.0, 0
        wanted = self.output_tokens if output_tokens is None else output_tokens
        while got < wanted - 1e-6:
            got += self.gained(window)
            steps += 1
        return steps

    def gained(self, window: int) -> float:
        """Expected tokens of a step: drafted ones up to the first rejection, and the verifier's own."""
        expected = 0.0
        for accepted in range(window):
            expected += (accepted + 1) * self.alpha**accepted * (1 - self.alpha)
        return expected + (window + 1) * self.alpha**window

    def fits(self, batch: Sequence[int]) -> bool:
        """Whether weights and KV caches of a batch fit into the memory, at two bytes per number."""
        node = self.draft
        weights = 2 * node.layers * (4 * node.hidden**2 + 2 * node.hidden * node.ffn)
        positions = len(batch) * (max(self.inputs[k] for k in batch) + self.output_tokens)
        return weights + 2 * (2 * node.layers * node.hidden) * positions <= self.memory_bytes

    def stage_times(self, size: int, longest: int, step: int, window: int) -> tuple[float, float]:
        """Drafting and verifying a padded batch in one step."""
        return _stage_times(self, size, longest, step, window)

    def latency_s(self, batches: Sequence[Sequence[int]], window: int) -> float:
        """All steps of batches in this order."""
        shapes = [(len(batch), max(self.inputs[k] for k in batch)) for batch in batches]
        return math.fsum(
            play([self.stage_times(size, longest, step, window) for size, longest in shapes])
            for step in range(1, self.steps(window) + 1)
        )


@lru_cache(maxsize=500_000)
def _stage_times(one: Instance, size: int, longest: int, step: int, window: int) -> tuple[float, float]:
    held = longest + (step - 1) * one.gained(window) - 1  # all but the bonus token, which is computed next
    drafting = 0.0
    for i in range(window):
        prompt = step == 1 and i == 0
        flops = one.draft.matrices(longest, longest) if prompt else one.draft.matrices(1, held + i + 1)
        drafting += one.draft.c1 * flops * size + one.draft.c2
    if step == 1:
        flops = one.verify.matrices(longest + window, longest + window)
    else:
        flops = one.verify.matrices(1 + window, held + 1 + window)
    return drafting, one.verify.c1 * flops * size + one.verify.c2


def play(times: Sequence[tuple[float, float]]) -> float:
    """Completion time of the last batch in a pipeline of two nodes with one batch each, simulated event by event."""
    waiting = list(range(len(times)))
    drafted: list[int] = []
    drafter: tuple[float, int] | None = None
    verifier: tuple[float, int] | None = None
    now, left = 0.0, len(times)
    while left:
        if drafter is None and waiting:
            k = waiting.pop(0)
            drafter = now + times[k][0], k
        if verifier is None and drafted:
            k = drafted.pop(0)
            verifier = now + times[k][1], k
        now = min(event[0] for event in (drafter, verifier) if event is not None)
        if drafter is not None and drafter[0] == now:
            drafted.append(drafter[1])
            drafter = None
        if verifier is not None and verifier[0] == now:
            verifier = None
            left -= 1
    return now


def algorithm_1(one: Instance, window: int) -> tuple[list[list[int]], float]:
    """Algorithm 1 with the errata's corrections: batches of task indices, and the latency that it computes."""
    order = sorted(range(len(one.inputs)), key=lambda k: one.inputs[k])
    steps = range(1, one.steps(window) + 1)
    zero = [0.0 for _ in steps]
    table: list[tuple[list[float], list[float]]] = [(zero, zero)]
    begins, totals = [0], [0.0]
    for i in range(1, len(order) + 1):
        best, chosen = math.inf, None
        for j in range(1, i + 1):
            batch = order[j - 1 : i]
            if not one.fits(batch):
                continue
            first, second = [], []
            for n, a, b in zip(steps, *table[j - 1], strict=True):
                drafting, verifying = one.stage_times(len(batch), one.inputs[batch[-1]], n, window)
                first.append(a + drafting)
                second.append(max(a + drafting, b) + verifying)
            if math.fsum(second) <= best:
                best, chosen = math.fsum(second), (j, first, second)
        assert chosen is not None, "a task does not fit alone"
        table.append(chosen[1:])
        begins.append(chosen[0])
        totals.append(best)
    batches: list[list[int]] = []
    i = len(order)
    while i > 0:
        batches.insert(0, order[begins[i] - 1 : i])
        i = begins[i] - 1
    return batches, totals[-1]


def partitions(tasks: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to put tasks into batches."""
    if not tasks:
        yield []
        return
    for rest in partitions(tasks[1:]):
        yield [[tasks[0]], *rest]
        for k in range(len(rest)):
            yield [*rest[:k], [tasks[0], *rest[k]], *rest[k + 1 :]]


def brute_force(one: Instance, window: int, contiguous: bool = False) -> float:
    """Lowest latency over all batches in all orders; `contiguous`: only runs of tasks sorted by input length."""
    best = math.inf
    ordered = sorted(range(len(one.inputs)), key=lambda k: one.inputs[k])
    for batches in runs(ordered) if contiguous else partitions(ordered):
        if all(one.fits(batch) for batch in batches):
            best = min(best, *(one.latency_s(order, window) for order in itertools.permutations(batches)))
    return best


def runs(tasks: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to cut a sequence."""
    for cuts in itertools.product((False, True), repeat=len(tasks) - 1):
        batches = [[tasks[0]]]
        for task, cut in zip(tasks[1:], cuts, strict=True):
            if cut:
                batches.append([])
            batches[-1].append(task)
        yield batches
