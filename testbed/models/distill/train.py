"""Training of a student on its target's answers, resumable, on CPU or GPU.

The loss of a token is a weighted mean of the Kullback-Leibler divergence of the student's distribution from the
target's, over the target's most likely ids, and of the cross-entropy of the target's own token. Each batch is a
function of (seed, step), so that a resumed run sees the same data as an uninterrupted one.
"""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from testbed.errors import BadInput
from testbed.models.distill.lesson import UNKNOWN, Lesson
from testbed.models.train import read_whole, save_whole

POOL = 8
"""Number of batches whose rows are sorted by length together, to limit padding."""
WARMUP_SHARE = 0.05
CLIP = 1.0
"""Largest norm of the gradient."""


@dataclass(frozen=True)
class TrainingPlan:
    """Settings of a training.

    Attributes:
        steps: number of optimiser steps.
        rows: lessons of a batch.
        rate: largest learning rate, reached after warm-up; it falls linearly to zero.
        kl: weight of the Kullback-Leibler divergence; the cross-entropy has the rest.
        seed: seed of the order of lessons.
    """

    steps: int
    rows: int
    rate: float
    kl: float
    seed: int

    def factor(self, step: int) -> float:
        """Share of the largest learning rate at a step."""
        warmup = max(1, round(WARMUP_SHARE * self.steps))
        return min((step + 1) / warmup, (self.steps - step) / max(1, self.steps - warmup))


class Look(NamedTuple):
    """What was seen of the student during training."""

    step: int
    loss: float | None
    """Mean loss in nats per token since the look before; None: before the first step."""
    acceptance: float


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Progress = tuple[_Count, _Count, Annotated[float, msgspec.Meta(ge=0)], list[Look]]
"""Steps, tokens, seconds and looks of a saved training."""


@dataclass
class TrainingState:
    """A student in training."""

    model: Any
    optimizer: torch.optim.Optimizer
    step: int = 0
    tokens: int = 0
    """Tokens of answers that were learned, repeated ones included."""
    seconds: float = 0.0
    looks: list[Look] = field(default_factory=list)


def batches(lessons: Sequence[Lesson], plan: TrainingPlan, first: int) -> Iterator[list[Lesson]]:
    """Batches from step `first` on, without end: every lesson once in each epoch."""
    return itertools.islice(_batches(lessons, plan), first, None)


def _batches(lessons: Sequence[Lesson], plan: TrainingPlan) -> Iterator[list[Lesson]]:
    for epoch in itertools.count():
        rng = random.Random(f"distill/{plan.seed}/{epoch}")
        order = rng.sample(range(len(lessons)), len(lessons))
        size = plan.rows * POOL
        pools = (order[start : start + size] for start in range(0, len(order), size))
        found = []
        for pool in pools:
            pool.sort(key=lambda i: len(lessons[i].ids))
            found += [pool[start : start + plan.rows] for start in range(0, len(pool), plan.rows)]
        rng.shuffle(found)
        yield from ([lessons[i] for i in group] for group in found)


def outputs(model: Any, group: Sequence[Lesson]) -> Tensor:
    """Logits [all places of the group, rows of the head] after the places of each lesson, in order."""
    device = next(model.parameters()).device
    ids = torch.zeros(len(group), max(len(one.ids) for one in group), dtype=torch.int64)
    for row, one in enumerate(group):
        ids[row, : len(one.ids)] = torch.from_numpy(one.ids)  # padding follows: no token attends to it
    rows = torch.cat([torch.full((len(one.places),), row) for row, one in enumerate(group)])
    places = torch.cat([torch.from_numpy(one.places) for one in group])
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model.model(ids.to(device)).last_hidden_state
        logits: Tensor = model.lm_head(hidden[rows.to(device), places.to(device)])
    return logits.float()


def loss_of(model: Any, group: Sequence[Lesson], kl: float) -> Tensor:
    """Mean loss over the tokens of a batch."""
    logs = functional.log_softmax(outputs(model, group), dim=-1)
    labels, top, logprobs = (
        torch.from_numpy(np.concatenate([getattr(one, name) for one in group])).to(logs.device)
        for name in ("labels", "top", "logprobs")
    )
    known = labels != UNKNOWN
    entropy = functional.nll_loss(logs, labels, ignore_index=UNKNOWN, reduction="sum") / known.sum().clamp(min=1)
    return kl * _divergence(logs, top, logprobs) + (1 - kl) * entropy


def _divergence(logs: Tensor, top: Tensor, logprobs: Tensor) -> Tensor:
    """Mean divergence from the target's distribution given that the token is among its most likely, known ones."""
    hidden = top == UNKNOWN
    some = ~hidden.all(dim=1)
    if not some.any():
        return logs.sum() * 0.0
    target = functional.log_softmax(logprobs.float().masked_fill(hidden, -torch.inf)[some], dim=-1)
    own = logs[some].gather(1, top[some].clamp(min=0))
    each = target.exp() * (target - own)
    return each.masked_fill(hidden[some], 0.0).sum(dim=1).mean()


@torch.inference_mode()
def matches(model: Any, lessons: Sequence[Lesson], rows: int) -> list[NDArray[np.bool_]]:
    """For every lesson [m]: whether the student's most likely token is the target's, given the target's text so far."""
    model.eval()
    found = []
    for start in range(0, len(lessons), rows):
        group = lessons[start : start + rows]
        best = outputs(model, group).argmax(dim=-1).cpu().numpy()
        ends = np.cumsum([len(one.places) for one in group])[:-1]
        found += [mine == one.labels for mine, one in zip(np.split(best, ends), group, strict=True)]
    return found


def begin(model: Any, plan: TrainingPlan, device: str) -> TrainingState:
    """A training before its first step."""
    model = model.to(device)
    return TrainingState(model, torch.optim.AdamW(model.parameters(), lr=plan.rate, betas=(0.9, 0.95), fused=True))


def step_with(state: TrainingState, group: Sequence[Lesson], plan: TrainingPlan) -> float:
    """One optimiser step; returns the loss before it in nats per token."""
    state.model.train()
    state.optimizer.param_groups[0]["lr"] = plan.rate * plan.factor(state.step)
    loss = loss_of(state.model, group, plan.kl)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), CLIP)
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.step += 1
    state.tokens += sum(len(one.places) for one in group)
    return float(loss.item())


def save_state(state: TrainingState, plan: TrainingPlan, checkpoint: Path) -> None:
    """Write a training, in one step."""
    content = {
        "plan": asdict(plan), "model": state.model.state_dict(), "optimizer": state.optimizer.state_dict(),
        "step": state.step, "tokens": state.tokens, "seconds": state.seconds, "looks": [tuple(x) for x in state.looks],
    }  # fmt: skip
    save_whole(content, checkpoint)


def restore(state: TrainingState, plan: TrainingPlan, checkpoint: Path) -> None:
    """Go on with a training that was saved, if there is one; the number of steps may have been changed.

    Raises:
        BadInput: the file is damaged, or belongs to another training.
    """
    if not checkpoint.exists():
        return
    try:
        saved = read_whole(checkpoint)
        if saved("plan") | {"steps": plan.steps} != asdict(plan):
            raise BadInput(f"{checkpoint} belongs to another training; choose another --out")
        state.model.load_state_dict(saved("model"))
        state.optimizer.load_state_dict(saved("optimizer"))
        progress = msgspec.convert([saved(name) for name in ("step", "tokens", "seconds", "looks")], Progress)
    except (
        OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, EOFError, pickle.UnpicklingError,
        msgspec.ValidationError,
    ) as exc:  # fmt: skip
        reason = str(exc).partition("\n")[0]
        raise BadInput(f"{checkpoint} is damaged ({reason}); remove it, and the training begins again") from exc
    state.step, state.tokens, state.seconds, state.looks = progress
