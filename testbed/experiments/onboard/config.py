"""Configuration of `testbed models onboard`."""

from __future__ import annotations

from typing import Annotated

from testbed import fields
from testbed.config import Config
from testbed.options import option


class OnboardConfig(Config, frozen=True, kw_only=True):
    """Configuration of `testbed models onboard`.

    Raises:
        BadInput: a value out of bounds.
    """

    target: Annotated[
        str,
        option(
            "Target: directory, Hugging Face id, GGUF file (llama), or name of a fetched model.",
            metavar="DIR", completes="fetched models", panel="Models",
        ),
    ]  # fmt: skip
    drafter: Annotated[
        str,
        option("Drafter: GGUF file, or name of a fetched model.", metavar="FILE", completes="fetched drafters"),
    ]
    engine: fields.Engine = "vllm"
    dtype: fields.Dtype = "float32"
    dataset: Annotated[
        str, option("Prompts to train head and predictor on, and to tune θ: as for `head collect`.", panel="Workload")
    ] = "bundled:calibration"
    test: Annotated[str, option("Prompts of the runs that check losslessness and fill the card.")] = "bundled:test"
    prompt_format: fields.PromptFormat = "auto"
    scorer: fields.Scorer = "number"
    prompts: Annotated[int, option("Prompts for the head, and for the predictor.", least=1)] = 300
    tuning: Annotated[int, option("Prompts after those, on which θ is tuned.", least=2)] = 200
    tested: Annotated[int, option("Prompts of each of those runs.", least=1)] = 20
    max_tokens: fields.MaxTokens = 256
    window: fields.Window = 8
    largest: Annotated[
        int, option("Tokens of the largest passes that are timed.", least=100, unit="tokens", panel="Measurement")
    ] = 1000
    thin: Annotated[int, option("Time every n-th kind of pass.", least=1)] = 2
    trials: Annotated[int, option("Hyper-parameter combinations tried per model of the predictor.", least=1)] = 6
    skip: Annotated[tuple[str, ...], option("Steps to leave out, and with them those that need them.")] = ()
