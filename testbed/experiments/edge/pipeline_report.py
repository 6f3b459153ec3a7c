"""Measured steps of the pipeline compared with the model (edge SD batching, eqs. 13–22)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from testbed.experiments.edge.config import MODES
from testbed.experiments.edge.pipeline import PipelineRun, StepRecord
from testbed.optim.inference_cost import Array, ServedPair, completion_s, draft_flops, verify_flops

NODES = ("draft", "verify")
LEAST_S = 1e-9
"""Lower bound of measured times, which may be 0."""


def model_step_s(serving: ServedPair, step: StepRecord) -> tuple[float, float]:
    """T^d and T^v for a step's batch size, longest prefix and window (eqs. 17–19)."""
    cost, first = serving.cost, step.step == 1
    number, inputs = (1, step.longest) if first else (2, step.longest - 1)
    each = [float(draft_flops(serving.draft_model, inputs, number, i, 1.0)) for i in range(1, step.window + 1)]
    drafting = cost.c1_draft * sum(each) * step.tasks + cost.c2_draft * step.window
    work = float(verify_flops(serving.verify_model, inputs, number, step.window, 1.0))
    return drafting, cost.c1_verify * work * step.tasks + cost.c2_verify


def measured_step_s(step: StepRecord) -> tuple[float, float]:
    """Measured T^d and T^v of a step."""
    return step.drafted[1] - step.drafted[0], step.verified[1] - step.verified[0]


def recursion_s(steps: Sequence[StepRecord], times: Sequence[tuple[float, float]], pipeline: bool) -> float:
    """T_inf of eqs. 20–22 for given draft and verification times of the steps."""
    batches, last = max(step.batch for step in steps) + 1, max(step.step for step in steps)
    table = np.zeros((2, batches, last))
    for step, pair in zip(steps, times, strict=True):
        table[:, step.batch, step.step - 1] = pair
    return float(completion_s(zip(table[0], table[1], strict=True), pipeline).sum())


def step_rows(run: PipelineRun, number: int, serving: ServedPair) -> list[dict[str, Any]]:
    """One row per step, with times from the start of the run."""
    begin = min(step.drafted[0] for step in run.steps)
    rows = []
    for step in run.steps:
        (draft, verify), (model_draft, model_verify) = measured_step_s(step), model_step_s(serving, step)
        rows.append({
            "mode": run.mode, "repeat": number, "batch": step.batch, "step": step.step, "tasks": step.tasks,
            "longest": step.longest, "window": step.window, "accepted": step.accepted, "committed": step.committed,
            "draft_begin_s": step.drafted[0] - begin, "verify_begin_s": step.verified[0] - begin, "draft_s": draft,
            "verify_s": verify, "draft_cpu_s": step.cpu[0], "verify_cpu_s": step.cpu[1],
            "model_draft_s": model_draft, "model_verify_s": model_verify,
        })  # fmt: skip
    return rows


def run_row(run: PipelineRun, number: int, serving: ServedPair, own: dict[int, list[int]] | None) -> dict[str, Any]:
    """Summary row of a run; `own`: the target's own outputs."""
    times = [measured_step_s(step) for step in run.steps]
    drafted = sum(step.tasks * step.window for step in run.steps)
    accepted, rejected = sum(step.accepted for step in run.steps), sum(step.rejected for step in run.steps)
    row: dict[str, Any] = {
        "mode": run.mode, "repeat": number, "inference_s": run.seconds, "steps": len(run.steps),
        "tokens": sum(map(len, run.outputs.values())),
        "acceptance": accepted / drafted if drafted else None,
        "acceptance_cond": accepted / (accepted + rejected) if drafted and accepted + rejected else None,
        "draft_s": sum(pair[0] for pair in times), "verify_s": sum(pair[1] for pair in times),
        "overlap_s": overlap_s(run.steps), "recursion_s": None, "recursion_cpu_s": None,
        "model_s": None,
        "lossless": None if own is None else run.outputs == own,
    }  # fmt: skip
    mode = MODES[run.mode]
    if mode.drafts and mode.in_steps:
        pipeline = mode.overlaps
        row["recursion_s"] = recursion_s(run.steps, times, pipeline)
        row["recursion_cpu_s"] = recursion_s(run.steps, [step.cpu for step in run.steps], pipeline)
        row["model_s"] = recursion_s(run.steps, [model_step_s(serving, step) for step in run.steps], pipeline)
    return row


def overlap_s(steps: Sequence[StepRecord]) -> float:
    """Time during which both nodes were busy."""
    return float(sum(
        max(0.0, min(a.drafted[1], b.verified[1]) - max(a.drafted[0], b.verified[0])) for a in steps for b in steps
    ))  # fmt: skip


def model_scores(rows: Sequence[dict[str, Any]], clock: str = "") -> dict[str, dict[str, float]]:
    """R², MAPE and the ratio of the sums (model over measured) of each node's step times, separately for first steps,
    which compute the prompts, and later ones.

    Args:
        clock: "cpu_" for CPU times.
    """
    found = {}
    for node in NODES:
        for phase in ("prompt", "decode"):
            mine = [
                row for row in rows if (node == "verify" or row["window"]) and (row["step"] == 1) == (phase == "prompt")
            ]
            if mine:
                measured = np.array([row[f"{node}_{clock}s"] for row in mine])
                found[f"{node} {phase}"] = _scores(measured, np.array([row[f"model_{node}_s"] for row in mine]))
    return found


def _scores(measured: Array, model: Array) -> dict[str, float]:
    spread = float(((measured - measured.mean()) ** 2).sum())
    return {
        "r2": 1 - float(((measured - model) ** 2).sum()) / spread if spread else 1.0,
        "mape": float((np.abs(model - measured) / np.maximum(measured, LEAST_S)).mean()),
        "ratio": float(model.sum() / max(float(measured.sum()), LEAST_S)),
        "steps": measured.size,
    }
