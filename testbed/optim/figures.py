"""Latency reductions quoted for Figs. 7–9, over random draws of users (edge SD batching, Section IV, Tables I, II).

A draw places users uniformly in a cell of 400 m, with gains g0·ρ·d^−2, and gives each an input and an output length.
Tasks are planned with O_max, as Algorithm 1 assumes, and timed with it unless the interpretation says otherwise. g0 is
taken as 10⁻⁶ (the paper prints −30 dBm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from testbed.intervals import median_interval, span
from testbed.optim.bandwidth import allocate, bits_per_token, communication_s, spectral_efficiency
from testbed.optim.inference_cost import Array, Cost, IntArray, Model, ServedPair
from testbed.optim.interpretations import Interpretation, TaskLengths, inference_by

MODELS = {
    "LLaMA-68M": Model(layers=2, hidden=768, ffn=3072),
    "LLaMA-1.1B": Model(layers=22, hidden=2048, ffn=5632),
    "LLaMA-7B": Model(layers=32, hidden=4096, ffn=11008),
    "LLaMA-13B": Model(layers=40, hidden=5120, ffn=13824),
}
"""Model dimensions (Table I)."""
COST = Cost(c1_draft=4.11e-13, c2_draft=5.6e-4, c1_verify=2.08e-14, c2_verify=1.28e-2)
"""Coefficients of Table II, printed once and used for all pairs."""
POWER_W, NOISE_W, RADIUS_M, GAIN_1M = 0.2, 10 ** (-106 / 10) / 1e3, 400.0, 1e-6
MEMORY_BYTES, MAX_WINDOW = 16e9, 10
BINARY_BYTES = 16 * 2.0**30
SYSTEMS = ("no-pipeline", "fixed-window", "no-batching")
"""Baselines of Fig. 7."""
BATCHINGS = ("static", "max", "heuristic")
"""Baselines of Fig. 8."""


@dataclass(frozen=True)
class QuotedPoint:
    """A point of a figure for which the paper's text quotes a reduction."""

    figure: str
    paper_percent: float
    against: tuple[str, ...]
    """Baselines, of which the fastest counts; empty: uniform bandwidth."""
    tasks: int = 100
    longest_input: int = 512
    longest_output: int = 2048
    bandwidth_hz: float = 20e6
    draft: str = "LLaMA-1.1B"
    verify: str = "LLaMA-7B"
    alpha: float = 0.8

    @property
    def serving(self) -> ServedPair:
        """Models and hardware of the point."""
        return ServedPair(
            draft_model=MODELS[self.draft], verify_model=MODELS[self.verify], cost=COST, memory_bytes=MEMORY_BYTES,
            max_output_tokens=self.longest_output, alpha=self.alpha, max_window=MAX_WINDOW,
        )  # fmt: skip


POINTS = (
    QuotedPoint("7a", 31.3, SYSTEMS),
    QuotedPoint("7b", 31.6, SYSTEMS),
    QuotedPoint("7c", 30.7, SYSTEMS, longest_output=1792),
    QuotedPoint("8a", 21.4, BATCHINGS, tasks=90),
    QuotedPoint("8b", 19.6, BATCHINGS, longest_input=1792),
    QuotedPoint("8c", 20.5, BATCHINGS, longest_output=1024),
    QuotedPoint("9a", 44.9, (), bandwidth_hz=25e6, draft="LLaMA-68M"),
    QuotedPoint("9b", 29.3, (), bandwidth_hz=25e6),
    QuotedPoint("9c", 25.2, (), bandwidth_hz=25e6, verify="LLaMA-13B"),
)
"""Figs. 7a and 7b are the same point, drawn twice."""


class DrawnUsers(NamedTuple):
    """One random draw of users."""

    inputs: IntArray
    """[K]"""
    efficiency: Array
    """[K] bit/s/Hz"""
    outputs: IntArray
    """[K]"""

    def lengths(self, interpretation: Interpretation) -> TaskLengths:
        """Input lengths, and output lengths if the interpretation draws them."""
        return TaskLengths(self.inputs, self.outputs if interpretation.outputs == "drawn" else None)


class Reduction(NamedTuple):
    """Reduction of the total latency against the best baseline, over draws."""

    median_percent: float
    median_interval: tuple[float | None, float | None]
    """95 % interval of the median, from order statistics; None for fewer than six draws."""
    draws_interval: tuple[float, float]
    """Central 95 % of the draws."""
    best: dict[str, int]
    """Number of draws in which each baseline was the best."""
    against_percent: dict[str, float]
    """Median reduction against each baseline."""
    window: float
    """Median window of the planner."""
    percents: tuple[float, ...]
    """Reduction in each draw."""

    def holds(self, percent: float) -> bool:
        """Whether `percent` lies within the central 95 % of the draws."""
        low, high = self.draws_interval
        return low <= percent <= high


def draw(point: QuotedPoint, seed: int) -> DrawnUsers:
    """Draw the users of a cell with their input and output lengths."""
    rng = np.random.default_rng(seed)
    metres = RADIUS_M * np.sqrt(rng.uniform(size=point.tasks))
    gains = GAIN_1M * rng.exponential(size=point.tasks) * metres**-2
    inputs = rng.integers(1, point.longest_input + 1, point.tasks)
    outputs = np.random.default_rng([seed, 1]).integers(1, point.longest_output + 1, point.tasks)
    return DrawnUsers(inputs, spectral_efficiency(np.full(point.tasks, POWER_W), gains, NOISE_W), outputs)


def reduction(
    point: QuotedPoint, seeds: Sequence[int], algorithm: str = "dp", interpretation: Interpretation | None = None
) -> Reduction:
    """Reduction at a point: median and 95 % intervals over draws, one per seed."""
    names = point.against or ("uniform",)
    percents, windows = np.zeros((len(seeds), len(names))), []
    interpretation = interpretation or Interpretation()
    for k, seed in enumerate(seeds):
        ours_s, others_s, window = latencies_s(point, draw(point, seed), algorithm, interpretation)
        percents[k] = [100 * (1 - ours_s / others_s[name]) for name in names]
        windows.append(window)
    least = np.sort(percents.min(axis=1))
    median, (low, high) = float(np.median(least)), span(least).tolist()
    best = np.bincount(percents.argmin(axis=1), minlength=len(names)).tolist()
    medians = np.median(percents, axis=0).tolist()
    return Reduction(
        median, median_interval(least).ends, (low, high), dict(zip(names, best, strict=True)),
        dict(zip(names, medians, strict=True)), float(np.median(windows)), tuple(percents.min(axis=1).tolist()),
    )  # fmt: skip


def latencies_s(
    point: QuotedPoint, users: DrawnUsers, algorithm: str, interpretation: Interpretation
) -> tuple[float, dict[str, float], int]:
    """Total latency T (eq. 23) of a planner and of each baseline, and the planner's window."""
    serving = point.serving
    if interpretation.memory == "binary":
        serving = msgspec.structs.replace(serving, memory_bytes=BINARY_BYTES)
    bits = users.inputs * bits_per_token(serving.draft_model.hidden, serving.verify_model.hidden)
    sent_s = {
        policy: communication_s(bits, allocate(policy, bits, users.efficiency), point.bandwidth_hz, users.efficiency)
        for policy in ("optimal", "uniform")
    }
    lengths = users.lengths(interpretation)
    plan = inference_by(algorithm, serving, lengths, interpretation)
    others = {
        name: inference_by(name, serving, lengths, interpretation, algorithm).inference_s + sent_s["optimal"]
        for name in point.against
    }
    if not others:
        others = {"uniform": plan.inference_s + sent_s["uniform"]}
    return plan.inference_s + sent_s["optimal"], others, plan.window
