"""Batched drafting with llama.cpp: every pass computes one token for all tasks of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput, ModelError
from testbed.llama.context import LlamaOptions
from testbed.llama.group import LlamaGroup, SequenceInput


@dataclass
class _Task:
    """`ids` holds the committed tokens, followed by drafted ones; the first `cached` of them are in the cache."""

    place: int
    ids: list[int]
    length: int
    cached: int = 0


class BatchDrafter:
    """A GGUF model that drafts greedily for batches of tasks. Not thread-safe.

    A task's prompt is computed together with its first draft, as in edge SD batching, eq. 13.
    """

    def __init__(
        self,
        path: Path,
        vocab_size: int | None = None,
        *,
        context: int | None = None,
        sequences: int = 4,
        threads: int | None = None,
        gpu_layers: int = -1,
        kv_type: Literal["f16", "f32"] = "f16",
    ) -> None:
        """Load a model; see `LlamaOptions` and `LlamaDrafter`.

        Raises:
            ModelError: the file cannot be used, or has fewer rows than the tokenizer has ids.
            ConfigError: an option out of range.
        """
        options = LlamaOptions(context, sequences, threads, gpu_layers, None, kv_type)
        self._llama = LlamaGroup(path, options)
        self.vocab_size = self._llama.vocab_size(vocab_size)
        self.context = self._llama.context
        self._free = list(reversed(range(sequences)))
        self._tasks: dict[int, _Task] = {}

    def open(self, task: int, prompt: Sequence[int]) -> None:
        """Add a task; its prompt is computed with its first draft.

        Raises:
            BadInput: a task that exists already, or a prompt that is empty, too long, or has unknown ids.
            ModelError: all sequences are in use.
        """
        ids = [int(i) for i in prompt]
        if task in self._tasks:
            raise BadInput(f"task {task} exists already")
        if not ids or min(ids) < 0 or max(ids) >= self.vocab_size or len(ids) > self.context:
            raise BadInput(
                f"the prompt of task {task} has {len(ids)} ids: give 1 to {self.context}, each below {self.vocab_size}"
            )
        if not self._free:
            raise ModelError("all sequences of the drafter are in use; close one or load it with more")
        self._tasks[task] = _Task(self._free.pop(), ids, len(ids))

    def draft(self, batch: Sequence[int], window: int) -> NDArray[np.int32]:
        """[b, window] next tokens of a batch of tasks, drafted greedily.

        Uncommitted drafts are dropped first.

        Raises:
            BadInput: no task, an unknown or repeated one, or no window.
            ModelError: the context is full, or a pass failed.
        """
        if window < 1:
            raise BadInput(f"a window has 1 token or more, not {window}")
        if not batch or len(set(batch)) < len(batch):
            raise BadInput(f"a batch has at least 1 task, each once, not {list(batch)}")
        tasks = [self._task(task) for task in batch]
        for task in tasks:
            self._cut(task, task.length)
            self._uncache(task, task.length - 1)
            if task.length + window - 1 > self.context:
                raise ModelError(f"the drafter's context of {self.context} positions is full")
        self._llama.fill([SequenceInput(task.place, task.cached, task.ids[task.cached : -1]) for task in tasks])
        for task in tasks:
            task.cached = task.length - 1
        for _ in range(window):
            rows = [SequenceInput(task.place, task.cached, task.ids[-1:]) for task in tasks]
            for task, token in zip(tasks, self._llama.follow(rows, self.vocab_size).tolist(), strict=True):
                task.ids.append(token)
                task.cached += 1
        return np.array([task.ids[-window:] for task in tasks], np.int32).reshape(len(tasks), window)

    def commit(self, task: int, accepted: int, token: int) -> None:
        """Keep the first `accepted` drafted tokens, add `token`, and drop the other drafts.

        Raises:
            ValueError: more tokens than drafted, or a token outside the vocabulary.
        """
        kept = self._task(task)
        drafted = len(kept.ids) - kept.length
        if not 0 <= accepted <= drafted:
            raise ValueError(f"{accepted} tokens accepted of {drafted} drafted")
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token {token} is outside the drafter's vocabulary of {self.vocab_size}")
        self._cut(kept, kept.length + accepted)
        kept.ids.append(int(token))
        kept.length = len(kept.ids)

    def length(self, task: int) -> int:
        """Number of committed tokens of a task, including the prompt."""
        return self._task(task).length

    def release(self, task: int) -> None:
        """Remove a task."""
        gone = self._task(task)
        del self._tasks[task]
        self._llama.forget(gone.place, 0)
        self._free.append(gone.place)

    def close(self) -> None:
        """Free the model; a second call does nothing."""
        self._llama.close()

    def _task(self, task: int) -> _Task:
        if task not in self._tasks:
            raise BadInput(f"unknown task {task}")
        return self._tasks[task]

    def _cut(self, task: _Task, length: int) -> None:
        del task.ids[length:]
        self._uncache(task, length)

    def _uncache(self, task: _Task, length: int) -> None:
        if task.cached > length:
            self._llama.forget(task.place, length)
            task.cached = length
