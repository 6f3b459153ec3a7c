"""Models of a cell: the pair that computes tokens and hidden states, and the judge."""

from __future__ import annotations

from typing import Annotated

from testbed import fields
from testbed.options import Config, option


class CellModels(Config, frozen=True):
    """A pair that computes the tokens of all UEs in place of synthetic ones; times remain those of the profiles.

    UEs decode prompts of the data set, drawn at random.
    """

    target: fields.Target = None
    drafter: fields.DrafterFile = None
    engine: Annotated[str, option("Inference engine.", kinds="engines")] = "transformers"
    dtype: fields.Dtype = "float32"
    judge: Annotated[
        str | None, option("Judge. Default: head if a group has a threshold, else strict.", kinds="judges")
    ] = None
    head: fields.Head = None
    quality_budget: fields.QualityBudget = None
    dataset: fields.Dataset = "bundled:test"
    prompts: Annotated[int, option("Prompts from the data set.", least=1, most=10_000)] = 20
    prompt_format: fields.PromptFormat = "auto"
    shots: fields.Shots = 0
    scorer: fields.RunScorer = "number"
    max_tokens: fields.MaxTokens = 256
