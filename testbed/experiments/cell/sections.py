"""Sections of a cell's file: its base station, what is decided while serving, and models that compute its tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from testbed import fields
from testbed.bs.scheduling.registry import SCHEDULERS
from testbed.optim.loops.objectives import objective
from testbed.options import Config, option


class CellBs(Config, frozen=True):
    """The base station behind the cell."""

    profile: Annotated[str, option("Pass times: a profile's name or file.", completes="profiles")] = (
        "a100-qwen3-32b-appendix"
    )
    scheduler: Annotated[str, option("Order of verification.", kinds="schedulers")] = "fcfs"
    max_batch: Annotated[int, option("Requests of one pass, at most.", least=1, most=4096)] = 256
    between_ms: Annotated[
        float,
        option(
            "Time between passes that follow each other: judging, answering, planning. `cell run --real` measures it.",
            least=0,
            most=1e4,
            unit="ms",
        ),
    ] = 0.0
    between_request_ms: Annotated[
        float, option("The same for each request of the pass before, beside that.", least=0, most=1e3, unit="ms")
    ] = 0.0
    kv_tokens: Annotated[int, option("Tokens in the KV cache.", least=1024, most=10**9, unit="tokens")] = 1_000_000
    plan: Annotated[
        str | None,
        option("JSON of `optim plan`: its batches, window and shares are carried out, in place of the scheduler's."),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        SCHEDULERS.choose(self.scheduler)


class CellControl(Config, frozen=True):
    """Quantities that are decided while serving (`joint`: together with the others that are); `fixed`: they stay as
    configured.
    """

    windows: Literal["fixed", "joint"] = "fixed"
    weights: Literal["fixed", "joint"] = "fixed"
    order: Literal["fixed", "joint"] = "fixed"
    protocol: Literal["fixed", "joint"] = "fixed"
    threshold: Literal["fixed", "joint"] = "fixed"
    lookahead: Literal["fixed", "joint"] = "fixed"
    objective: Annotated[str, option("What is maximised: goodput, of promises that are kept, or fair.")] = "goodput"
    every_ms: Annotated[
        float,
        option("Time between decisions; responses that begin or end bring further ones.", least=1, most=1e5, unit="ms"),
    ] = 40.0
    joule_tokens: Annotated[float, option("Tokens that a joule of a UE is worth.", least=0, most=1e6)] = 0.0
    risk_tokens: Annotated[
        float,
        option(
            "Tokens that a unit of risk is worth: −ln(1 − θ) of each mismatch that a judge keeps.", least=0, most=1e6
        ),
    ] = 0.0
    csi: Annotated[
        Literal["reports", "oracle"],
        option("Rates that decisions rest on: those of link adaptation, or the true ones."),
    ] = "reports"

    def __post_init__(self) -> None:
        super().__post_init__()
        objective(self.objective)

    @property
    def decides(self) -> bool:
        """Whether anything is decided while serving."""
        return "joint" in (self.windows, self.weights, self.order, self.protocol, self.threshold, self.lookahead)


class CellModels(Config, frozen=True):
    """A pair that computes the tokens of all UEs in place of synthetic ones; times remain those of the profiles.

    UEs decode prompts of the data set, drawn at random.
    """

    target: fields.Target = None
    drafter: fields.DrafterFile = None
    engine: Annotated[str, option("Inference engine.", kinds="engines")] = "transformers"
    dtype: fields.Dtype = "float32"
    judge: Annotated[
        str | None,
        option(
            "Judge. Default: head or budget if their options or a threshold are given, else strict.", kinds="judges"
        ),
    ] = None
    head: fields.Head = None
    quality_budget: fields.QualityBudget = None
    dataset: fields.Dataset = "bundled:test"
    prompts: Annotated[int, option("Prompts from the data set.", least=1, most=10_000)] = 20
    prompt_format: fields.PromptFormat = "auto"
    shots: fields.Shots = 0
    scorer: fields.RunScorer = "number"
    max_tokens: fields.MaxTokens = 256
