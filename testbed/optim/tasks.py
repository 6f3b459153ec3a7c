"""JSON input and output of `testbed optim plan` and `testbed optim bandwidth`: tasks, link, models and hardware."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from testbed.errors import BadInput
from testbed.files import file_bytes
from testbed.optim.bandwidth import allocate, bits_per_token, communication_s, rates_bps, spectral_efficiency
from testbed.optim.baselines import batch_by
from testbed.optim.inference_cost import Array, Cost, IntArray, Model, ServedPair
from testbed.optim.output_lengths import plan_by_lengths
from testbed.optim.planner import Batching
from testbed.options import Config

T = TypeVar("T")


OF_A_TASK = (
    ("input_tokens", 1, 10**9),
    ("output_tokens", 1, 10**9),
    ("power_w", 1e-30, 1e6),
    ("gain", 1e-30, 1e6),
    ("upload_bits", 1e-6, 1e18),
)
BOUNDS = (("bandwidth_hz", 1.0, 1e13), ("noise_w", 1e-30, 1e6), ("bits_per_token", 1e-6, 1e12))
"""Least and largest values of a task and of a problem."""


class Task(Config, frozen=True):
    """One user's task.

    Raises:
        BadInput: a number beyond `OF_A_TASK`.
    """

    input_tokens: int
    """I_k"""
    power_w: float
    """p_k"""
    gain: float
    """g_k, uplink power gain."""
    output_tokens: int | None = None
    """O_k, after which the task leaves its batch; None: O_max."""
    upload_bits: float | None = None
    """D_k, such as the bits that a protocol sends; None: λ·I_k."""

    def __post_init__(self) -> None:
        _check(self, OF_A_TASK, " of a task")


class Problem(Config, frozen=True):
    """Tasks, their shared uplink and, for plans, models and hardware; units are in the names.

    Raises:
        BadInput: no task, a bandwidth, noise or λ beyond `BOUNDS`, or a task with more output tokens than O_max.
    """

    bandwidth_hz: float
    noise_w: float
    """σ², not scaled by a task's share of the bandwidth."""
    tasks: tuple[Task, ...]
    bits_per_token: float | None = None
    """λ; None: 16 bits per element of both models' embeddings."""
    draft_model: Model | None = None
    verify_model: Model | None = None
    cost: Cost | None = None
    memory_bytes: float | None = None
    max_output_tokens: int | None = None
    alpha: float | None = None
    max_window: int = 10
    drafting: Literal["node", "ues"] = "node"
    """Whether one node drafts for all tasks, as in the paper, or each UE for its own."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BadInput("tasks is empty; give at least one")
        longest = max(task.output_tokens or 0 for task in self.tasks)
        if self.max_output_tokens is not None and longest > self.max_output_tokens:
            raise BadInput(f"a task has {longest} output tokens, max_output_tokens is {self.max_output_tokens}")
        _check(self, BOUNDS)

    @property
    def inputs(self) -> IntArray:
        """[K] input tokens."""
        return np.array([task.input_tokens for task in self.tasks])

    @property
    def bits(self) -> Array:
        """[K] uploads D_k: the tasks' own, or λ·I_k.

        Raises:
            BadInput: a task's own is not given, and neither are λ and the models.
        """
        own = [task.upload_bits for task in self.tasks]
        each = self.bits_per_token
        if each is None and None in own:
            draft, verify = _given("draft_model", self.draft_model), _given("verify_model", self.verify_model)
            each = bits_per_token(draft.hidden, verify.hidden)
        priced = zip(own, self.tasks, strict=True)
        return np.array([(each or 0.0) * task.input_tokens if bits is None else bits for bits, task in priced])

    @property
    def outputs(self) -> IntArray | None:
        """[K] output tokens; None: O_max for all."""
        if all(task.output_tokens is None for task in self.tasks):
            return None
        longest = _given("max_output_tokens", self.max_output_tokens)
        return np.array([task.output_tokens or longest for task in self.tasks])

    @property
    def efficiency(self) -> Array:
        """[K] spectral efficiencies, bit/s/Hz."""
        powers, gains = zip(*((task.power_w, task.gain) for task in self.tasks), strict=True)
        return spectral_efficiency(powers, gains, self.noise_w)

    @property
    def serving(self) -> ServedPair:
        """Models, hardware and limits for a plan.

        Raises:
            BadInput: a key that a plan needs is missing.
        """
        return ServedPair(
            draft_model=_given("draft_model", self.draft_model),
            verify_model=_given("verify_model", self.verify_model),
            cost=_given("cost", self.cost),
            memory_bytes=_given("memory_bytes", self.memory_bytes),
            max_output_tokens=_given("max_output_tokens", self.max_output_tokens),
            alpha=_given("alpha", self.alpha),
            max_window=self.max_window,
        )


def _check(part: Config, bounds: Sequence[tuple[str, float, float]], of: str = "") -> None:
    for name, least, most in bounds:
        if (value := getattr(part, name)) is not None and not least <= value <= most:
            raise BadInput(f"{name}{of} must lie in [{least:g}, {most:g}], not {float(value):g}")


def load_problem(path: Path) -> Problem:
    """Read a problem from JSON.

    Raises:
        BadInput: unreadable file, unknown or missing keys, values of a wrong type or out of range.
    """
    try:
        return msgspec.json.decode(file_bytes(path), type=Problem)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadInput) as exc:
        raise BadInput(f"{path}: {exc}") from exc


def allocation(problem: Problem, policy: str = "optimal") -> dict[str, Any]:
    """Bandwidth shares, rates and T_com: the output of `testbed optim bandwidth --json`."""
    bits, efficiency = problem.bits, problem.efficiency
    shares = allocate(policy, bits, efficiency)
    seconds = communication_s(bits, shares, problem.bandwidth_hz, efficiency)
    rates_mbps = rates_bps(shares, problem.bandwidth_hz, efficiency) / 1e6
    return {"bandwidth": shares.tolist(), "communication_s": seconds, "rates_mbps": rates_mbps.tolist()}


def plan(
    problem: Problem, algorithm: str = "best", window: int | None = None, policy: str = "optimal"
) -> dict[str, Any]:
    """Complete plan with T = T_inf + T_com (eq. 23): the output of `testbed optim plan --json`.

    Raises:
        BadInput: as `allocate`, `batch_by` and `plan_by_lengths`, or a key of the problem is missing.
    """
    shared = allocation(problem, policy)
    found = _batched(problem, algorithm, window)
    return {
        "window": found.window,
        "batches": [list(batch) for batch in found.batches],
        "bandwidth": shared["bandwidth"],
        "rates_mbps": shared["rates_mbps"],
        "latency_s": found.inference_s + shared["communication_s"],
        "communication_s": shared["communication_s"],
        "inference_s": found.inference_s,
    }


def _batched(problem: Problem, algorithm: str, window: int | None) -> Batching:
    """The batching of a problem: the paper's model, unless lengths are known or the UEs draft."""
    outputs, on_ues = problem.outputs, problem.drafting == "ues"
    if outputs is None and not on_ues:
        return batch_by(algorithm, problem.serving, problem.inputs, window)
    return plan_by_lengths(problem.serving, problem.inputs, outputs, algorithm, window, on_ues)


def _given(name: str, value: T | None) -> T:
    if value is None:
        raise BadInput(f"{name} is missing")
    return value
