"""JSON input and output of `testbed optim plan` and `testbed optim bandwidth`: tasks, link, models and hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from testbed.errors import BadInput
from testbed.optim.bandwidth import allocate, bits_per_token, communication_s, rates_bps, spectral_efficiency
from testbed.optim.baselines import batch_by
from testbed.optim.inference_cost import Array, Cost, IntArray, Model, ServedPair
from testbed.options import Config

T = TypeVar("T")


class Task(Config, frozen=True):
    """One user's task.

    Raises:
        BadInput: no input tokens, or a power or gain that is not positive.
    """

    input_tokens: int
    """I_k"""
    power_w: float
    """p_k"""
    gain: float
    """g_k, uplink power gain."""

    def __post_init__(self) -> None:
        if self.input_tokens < 1:
            raise BadInput(f"input_tokens of a task must be 1 or more, not {self.input_tokens}")
        for name in ("power_w", "gain"):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise BadInput(f"{name} of a task must be positive and finite, not {value:g}")


class Problem(Config, frozen=True):
    """Tasks, their shared uplink and, for plans, models and hardware; units are in the names.

    Raises:
        BadInput: no task, or a bandwidth, noise or λ that is not positive.
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

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BadInput("tasks is empty; give at least one")
        for name in ("bandwidth_hz", "noise_w", "bits_per_token"):
            if (value := getattr(self, name)) is not None and not 0 < value < float("inf"):
                raise BadInput(f"{name} must be positive and finite, not {value:g}")

    @property
    def inputs(self) -> IntArray:
        """[K] input tokens."""
        return np.array([task.input_tokens for task in self.tasks])

    @property
    def bits(self) -> Array:
        """[K] uploads D_k = λ·I_k.

        Raises:
            BadInput: neither λ nor the models are given.
        """
        each = self.bits_per_token
        if each is None:
            draft, verify = _given("draft_model", self.draft_model), _given("verify_model", self.verify_model)
            each = bits_per_token(draft.hidden, verify.hidden)
        bits: Array = self.inputs * np.float64(each)
        return bits

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


def load_problem(path: Path) -> Problem:
    """Read a problem from JSON.

    Raises:
        BadInput: unreadable file, unknown or missing keys, values of a wrong type or out of range.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Problem)
    except (OSError, msgspec.DecodeError, BadInput) as exc:
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
        BadInput: as `allocate` and `batch_by`, or a key of the problem is missing.
    """
    shared = allocation(problem, policy)
    found = batch_by(algorithm, problem.serving, problem.inputs, window)
    return {
        "window": found.window,
        "batches": [list(batch) for batch in found.batches],
        "bandwidth": shared["bandwidth"],
        "rates_mbps": shared["rates_mbps"],
        "latency_s": found.inference_s + shared["communication_s"],
        "communication_s": shared["communication_s"],
        "inference_s": found.inference_s,
    }


def _given(name: str, value: T | None) -> T:
    if value is None:
        raise BadInput(f"{name} is missing")
    return value
