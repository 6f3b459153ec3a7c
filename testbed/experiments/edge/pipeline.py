"""Schedule of batches on two real nodes, one that drafts and one that verifies (edge SD batching, Section II-B).

Modes: `pipeline` (eqs. 20–22): in every decoding step all batches in order, batch m drafted while batch m − 1 is
verified; a step begins when the last one has ended. `sequential`: one node at a time (the paper's SD w/o pipeline).
`continuous` (ours): a batch begins its next step as soon as it is verified. `target-only`: without drafts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.experiments.edge.config import MODES
from testbed.experiments.edge.pipeline_nodes import Done, DraftBatch, NodeProcess, OpenTasks, Verify, answers

TIMEOUT_S = 300.0
"""Timeout of one order."""


class StepRecord(NamedTuple):
    """A decoding step of a batch; times on the host's monotonic clock."""

    batch: int
    step: int
    """n, from 1."""
    tasks: int
    """b: unfinished tasks."""
    longest: int
    """Committed tokens of the longest task."""
    window: int
    drafted: tuple[float, float]
    """Start and end; equal if nothing is drafted."""
    verified: tuple[float, float]
    accepted: int
    rejected: int
    """Tasks whose window was not accepted as a whole."""
    committed: int
    cpu: tuple[float, float] = (0.0, 0.0)
    """CPU time of the nodes' processes for drafting and verifying."""


@dataclass
class PipelineRun:
    """Results of a run."""

    mode: str
    seconds: float
    ended_s: float
    """End of the run on the host's monotonic clock."""
    outputs: dict[int, list[int]]
    steps: list[StepRecord]


@dataclass
class _Batch:
    index: int
    tasks: list[int]
    step: int = 1
    drafts: Sequence[Sequence[int]] = ()
    drafted: tuple[float, float] = (0.0, 0.0)
    draft_cpu_s: float = 0.0
    committed: list[tuple[int, int, int]] = field(default_factory=list)
    """Commits that the drafter does not have yet."""


class Pipeline:
    """One run over the nodes.

    Args:
        prompts: token ids of each task.
        batches: tasks of each batch, in the order of the pipeline.
        window: l; 0 for target-only.
        max_tokens: maximum output length of a task.
        end_ids: tokens that end an output.

    Raises:
        BadInput: an unknown mode, tasks in no batch or in two, or a window that does not match the mode.
    """

    def __init__(
        self,
        drafter: NodeProcess,
        verifier: NodeProcess,
        prompts: Mapping[int, Sequence[int]],
        batches: Sequence[Sequence[int]],
        *,
        mode: str,
        window: int,
        max_tokens: int,
        end_ids: Sequence[int],
    ) -> None:
        if mode not in MODES:
            raise BadInput(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
        if sorted(task for batch in batches for task in batch) != sorted(prompts):
            raise BadInput("every task must be in exactly one batch")
        if (window < 1) == MODES[mode].drafts or window < 0:
            raise BadInput(f"mode {mode} does not take a window of {window}")
        self._drafter, self._verifier = drafter, verifier
        self._prompts, self._mode, self._way, self._window = prompts, mode, MODES[mode], window
        self._max_tokens, self._end_ids = max_tokens, frozenset(end_ids)
        self._outputs: dict[int, list[int]] = {task: [] for task in prompts}
        self._to_draft = deque(_Batch(i, list(batch)) for i, batch in enumerate(batches) if batch)
        self._to_verify: deque[_Batch] = deque()
        self._drafting: _Batch | None = None
        self._verifying: _Batch | None = None
        self._next_step: list[_Batch] = []
        self._steps: list[StepRecord] = []

    def run(self) -> PipelineRun:
        """Decode all tasks.

        Raises:
            TestbedError: a node failed, died or timed out.
        """
        for node in (self._drafter, self._verifier):
            node.ask(OpenTasks(self._prompts), TIMEOUT_S)
        start_s = time.monotonic()
        while self._begin():
            for node in answers([node for node in (self._drafter, self._verifier) if node.busy], TIMEOUT_S):
                if node is self._drafter:
                    self._after_draft(node.take())
                else:
                    self._after_verify(node.take())
        ended_s = time.monotonic()
        return PipelineRun(self._mode, ended_s - start_s, ended_s, self._outputs, self._steps)

    def _begin(self) -> bool:
        """Give idle nodes their next orders; returns whether a node is busy."""
        if not (self._to_draft or self._to_verify or self._drafting or self._verifying):
            self._to_draft.extend(sorted(self._next_step, key=lambda batch: batch.index))
            self._next_step = []
        if not self._way.drafts:
            self._to_verify.extend(self._to_draft)
            self._to_draft.clear()
        if self._to_verify and self._verifying is None:
            self._verify(self._to_verify.popleft())
        free = self._way.overlaps or self._verifying is None
        if self._to_draft and self._drafting is None and free:
            self._draft(self._to_draft.popleft())
        return self._drafting is not None or self._verifying is not None

    def _draft(self, batch: _Batch) -> None:
        self._drafter.send(DraftBatch(batch.committed, batch.tasks, self._window))
        batch.committed, self._drafting = [], batch

    def _after_draft(self, done: Done) -> None:
        batch, self._drafting = self._drafting, None
        assert batch is not None
        batch.drafts, batch.drafted, batch.draft_cpu_s = done.rows, (done.start_s, done.end_s), done.cpu_s
        self._to_verify.append(batch)

    def _verify(self, batch: _Batch) -> None:
        drafts = batch.drafts if self._window else [[] for _ in batch.tasks]
        prefixes = [[*self._prompts[task], *self._outputs[task]] for task in batch.tasks]
        self._verifier.send(Verify(batch.tasks, prefixes, drafts))
        batch.drafts, self._verifying = drafts, batch

    def _after_verify(self, done: Done) -> None:
        """Commit the accepted tokens and the target's own, and drop finished tasks."""
        batch, self._verifying = self._verifying, None
        assert batch is not None
        longest = max(len(self._prompts[task]) + len(self._outputs[task]) for task in batch.tasks)
        tasks, kept = len(batch.tasks), []
        accepted_all = rejected = committed = 0
        for task, drafted, argmax in zip(batch.tasks, batch.drafts, done.rows, strict=True):
            accepted = next((i for i, token in enumerate(drafted) if token != argmax[i]), len(drafted))
            output = self._outputs[task]
            before = len(output)
            finished = self._extend(output, [*drafted[:accepted], argmax[accepted]])
            accepted_all += accepted
            rejected += accepted < len(drafted)
            committed += len(output) - before
            if not finished:
                kept.append(task)
                batch.committed.append((task, accepted, argmax[accepted]))
        self._steps.append(
            StepRecord(
                batch.index, batch.step, tasks, longest, self._window,
                batch.drafted if self._window else (done.start_s, done.start_s), (done.start_s, done.end_s),
                accepted_all, rejected, committed, (batch.draft_cpu_s, done.cpu_s),
            )
        )  # fmt: skip
        batch.tasks, batch.step = kept, batch.step + 1
        if kept:
            (self._next_step if self._way.in_steps else self._to_draft).append(batch)

    def _extend(self, output: list[int], tokens: Sequence[int]) -> bool:
        """Append tokens up to an end token or the maximum length; returns whether the task is finished."""
        for token in tokens:
            output.append(token)
            if token in self._end_ids or len(output) == self._max_tokens:
                return True
        return False
