"""Configurations of `testbed optim fit` and `testbed optim run`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from testbed import fields
from testbed.config import Config
from testbed.errors import BadInput
from testbed.optim.bandwidth import POLICIES
from testbed.options import option


class PipelineMode(NamedTuple):
    """How batches go through the two nodes."""

    drafts: bool = True
    """Whether tokens are drafted; otherwise the target decodes alone."""
    overlaps: bool = True
    """Whether both nodes may work at once."""
    in_steps: bool = True
    """Whether a step begins when the last one of all batches has ended, as in the recursion of eqs. 20-22."""


MODES = {
    "pipeline": PipelineMode(),
    "sequential": PipelineMode(overlaps=False),
    "continuous": PipelineMode(in_steps=False),
    "target-only": PipelineMode(drafts=False),
}
QUICK: dict[str, Any] = {"batches": (1, 4, 8), "prefixes": (64, 256), "windows": (2, 6), "repeats": 3, "warmups": 1}
"""Fields that `--quick` sets."""
Threads = Annotated[int, option("CPU threads of either model.", least=1, panel="Measurement")]


class FitConfig(Config, frozen=True):
    """Configuration of `testbed optim fit`.

    Raises:
        BadInput: an empty list, or a value out of range.
    """

    batches: Annotated[
        tuple[int, ...],
        option("Batch sizes b (the paper: 4, 8, 16).", least=1, most=256, metavar="LIST", panel="Measurement"),
    ] = (1, 2, 4, 8, 16)
    prefixes: Annotated[
        tuple[int, ...],
        option("Committed tokens, best in whole blocks of the target's cache.", least=2, most=10**6, metavar="LIST"),
    ] = (64, 256, 512, 1024)
    windows: Annotated[tuple[int, ...], option("Draft windows l.", least=1, most=64, metavar="LIST")] = (1, 4, 8)
    repeats: Annotated[int, option("Measured steps of a combination, of which the median is used.", least=1)] = 5
    warmups: Annotated[int, option("Steps before them that are discarded.", least=0)] = 2
    threads: Threads = 1
    clock: Annotated[
        Literal["wall", "cpu"], option("cpu: the process's own time, for machines that are shared; needs one thread.")
    ] = "wall"
    seed: Annotated[int, option("Seed of prompts, order and resamples.", least=0)] = 0
    engine: fields.Engine = "vllm"
    model: fields.Target = None
    drafter: fields.DrafterFile = None
    dtype: fields.Dtype = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batches", "prefixes", "windows"):
            if not getattr(self, name):
                raise BadInput(f"{name} must be one or more numbers")
        if self.clock == "cpu" and self.threads != 1:
            raise BadInput("clock cpu adds up the threads' time; give threads 1")


class PipelineConfig(Config, frozen=True):
    """Configuration of `testbed optim run`.

    Raises:
        BadInput: a value out of range, or an unknown mode or policy.
    """

    tasks: Annotated[int, option("Users K.", least=1, panel="Tasks")] = 16
    dataset: Annotated[str, option("Prompts: bundled:test or FILE.jsonl.")] = "bundled:test"
    shots: Annotated[int, option("Largest number of worked examples before a question, drawn per task.", least=0)] = 3
    max_tokens: Annotated[int, option("Longest output O_max.", least=1, unit="tokens")] = 96
    seed: Annotated[int, option("Seed of the cell, the prompts and the order of the runs.", least=0)] = 0
    window: Annotated[int | None, option("Draft window l. Default: the plan's.", least=1, panel="Plan")] = None
    algorithm: Annotated[str, option("Planner, as in `optim plan`.", completes="algorithms")] = "best"
    alpha: Annotated[float, option("Acceptance rate that the plan assumes.")] = 0.8
    memory_bytes: Annotated[float, option("Memory of the verifier.", unit="bytes")] = 16e9
    bandwidth_mhz: Annotated[
        float, option("Bandwidth of the shared uplink; the rest of the cell is Table II's.", unit="MHz", panel="Uplink")
    ] = 1.0
    bits_per_token: Annotated[
        float | None, option("λ. Default: 16 bits per element of both models' embeddings.", unit="bits")
    ] = None
    policies: Annotated[
        tuple[str, ...],
        option("Bandwidth shares of the uploads.", kinds="bandwidth policies"),
    ] = ("optimal", "uniform")
    modes: Annotated[tuple[str, ...], option(f"Modes: {', '.join(MODES)}.", panel="Runs")] = tuple(MODES)
    repeats: Annotated[int, option("Runs of each mode and policy, in random order; the median is used.", least=1)] = 3
    threads: Annotated[int, option("CPU threads of either node.", least=1)] = 1
    engine: fields.Engine = "vllm"
    model: fields.Target = None
    drafter: fields.DrafterFile = None
    dtype: fields.Dtype = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("modes", tuple(MODES)), ("policies", tuple(POLICIES))):
            if not getattr(self, name) or (unknown := [one for one in getattr(self, name) if one not in known]):
                raise BadInput(f"no such {name}: {', '.join(unknown or ['none given'])}; known: {', '.join(known)}")

    @property
    def pair(self) -> FitConfig:
        """Models and engine."""
        return FitConfig(
            engine=self.engine, model=self.model, drafter=self.drafter, dtype=self.dtype, threads=self.threads
        )
