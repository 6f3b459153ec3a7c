"""Sections of a cell's file: what is decided while serving, and the models that compute its tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from testbed import fields
from testbed.optim.loops.objectives import objective
from testbed.options import Config, option


class CellControl(Config, frozen=True):
    """Quantities that are decided while serving (`joint`: together with the others that are); `fixed`: they stay as
    configured.
    """

    windows: Literal["fixed", "joint"] = "fixed"
    weights: Literal["fixed", "joint"] = "fixed"
    order: Literal["fixed", "joint"] = "fixed"
    protocol: Literal["fixed", "joint"] = "fixed"
    threshold: Literal["fixed", "joint"] = "fixed"
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
        return "joint" in (self.windows, self.weights, self.order, self.protocol, self.threshold)


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
