"""The training of a distillation with its checkpoints, and looks at the acceptance on held-out answers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from testbed.errors import BadInput
from testbed.experiments.distill.acceptance import acceptance
from testbed.experiments.distill.answers import Progress
from testbed.experiments.distill.config import DistillConfig
from testbed.models.distill.lesson import Lesson
from testbed.models.distill.train import (  # fmt: skip
    Look,
    TrainingPlan,
    TrainingState,
    batches,
    begin,
    matches,
    restore,
    save_state,
    step_with,
)


def train(
    config: DistillConfig,
    student: Any,
    data: tuple[Sequence[Lesson], Sequence[Lesson]],
    checkpoint: Path,
    say: Any,
    progress: Progress,
) -> TrainingState:
    """Train a student from its last checkpoint on.

    Args:
        data: lessons to train on, and held-out ones.

    Raises:
        BadInput: no such device, or a checkpoint that cannot be used.
    """
    plan = TrainingPlan(config.steps, config.rows, config.rate, config.kl, config.seed)
    state = begin(student, plan, _device(config.device))
    restore(state, plan, checkpoint)
    lessons, checks = data
    if not state.looks:
        _look(state, config, checks, None, say)
    losses: list[float] = []
    for group in batches(lessons, plan, state.step):
        if state.step >= plan.steps:
            break
        start_s = time.perf_counter()
        losses.append(step_with(state, group, plan))
        state.seconds += time.perf_counter() - start_s
        progress(state.step, plan.steps, f"loss {losses[-1]:.3f}, acceptance {state.looks[-1].acceptance:.3f}")
        if state.step % config.every == 0 or state.step == plan.steps:
            _look(state, config, checks, statistics.fmean(losses), say)
            save_state(state, plan, checkpoint)
            losses.clear()
    return state


def _device(wanted: str) -> str:
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise BadInput("PyTorch finds no GPU here: leave --device out, or give --device cpu")
    return "cuda" if there and wanted != "cpu" else "cpu"


def _look(state: TrainingState, config: DistillConfig, checks: Sequence[Lesson], loss: float | None, say: Any) -> None:
    """Measure the acceptance that the student would have now, and say so."""
    found = acceptance(matches(state.model, checks, config.rows), config.window)
    state.looks.append(Look(state.step, loss, found))
    known = "" if loss is None else f"loss {loss:.3f}, "
    left_s = state.seconds / state.step * (config.steps - state.step) if state.step else None
    rest = "" if left_s is None else f"; {state.tokens / state.seconds:.0f} tokens/s, {left_s / 60:.0f} min left"
    say(f"step {state.step} of {config.steps}: {known}acceptance {found:.3f} on held-out answers{rest}")
