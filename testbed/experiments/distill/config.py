"""Configuration of `testbed models distill`."""

from __future__ import annotations

from typing import Annotated, Literal

from testbed import fields
from testbed.config import Config
from testbed.options import option


class DistillConfig(Config, frozen=True, kw_only=True):
    """Configuration of `testbed models distill`.

    Raises:
        BadInput: a value out of bounds.
    """

    target: Annotated[
        str,
        option(
            "Target: Hugging Face directory or id of a Llama, Qwen2 or Qwen3 model, or name of a fetched model.",
            metavar="DIR", completes="fetched models", panel="Models",
        ),
    ]  # fmt: skip
    engine: fields.Engine = "vllm"
    dtype: fields.Dtype = "float32"
    layers: Annotated[
        str,
        option(
            "Layers of the drafter: how many, spread evenly over the target's, or their indices from 0, separated by "
            "commas.",
            panel="Drafter",
        ),
    ] = "4"
    hidden: Annotated[
        int | None,
        option("Hidden dimension of a narrower net, whose layers begin untrained. Default: the target's.", least=1),
    ] = None
    vocabulary: Annotated[
        int | None,
        option(
            "Ids in embedding and head: the most frequent ones of the target's answers. Default: all, which is most of "
            "a small drafter's time.",
            least=1,
        ),
    ] = None
    gguf: Annotated[Literal["f16", "q8_0", "q4_0"], option("Type of the weights in the GGUF file.")] = "q8_0"
    min_agreement: Annotated[
        float | None,
        option(
            "Keep a quantised file if this share of greedy tokens is that of the float weights. Default: 0.9 for q8_0, "
            "0.75 for q4_0.",
            least=0, most=1,
        ),
    ] = None  # fmt: skip
    prompts: Annotated[
        str,
        option(
            "What the target answers: bundled:chat, FILE.jsonl in any format of a data set, or "
            "hf:NAME[:CONFIG[:SPLIT]].",
            metavar="FILE", panel="Data",
        ),
    ] = "bundled:chat"  # fmt: skip
    limit: Annotated[int, option("Prompts to train on, at most.", least=1)] = 2000
    invented: Annotated[
        int,
        option(
            "Prompts that the target invents, sampled after the begin of a user's message, to train on as well; "
            "unfinished and repeated ones are dropped.",
            least=0,
        ),
    ] = 0  # fmt: skip
    held_out: Annotated[
        int, option("First prompts of the data set: not trained on, acceptance is measured on them.", least=1)
    ] = 50
    prompt_format: fields.PromptFormat = "auto"
    max_tokens: Annotated[int, option("Tokens of an answer, at most.", least=1, unit="tokens")] = 256
    top: Annotated[
        int, option("Most likely ids of each of the target's distributions that are kept.", least=1, most=1024)
    ] = 32
    concurrency: Annotated[int, option("Prompts answered concurrently.", least=1, most=4096)] = 16
    steps: Annotated[int, option("Steps of the optimiser.", least=1, panel="Training")] = 2000
    rows: Annotated[int, option("Prompts of a batch.", least=1)] = 8
    length: Annotated[int, option("Tokens of prompt and answer that are read, at most.", least=2, unit="tokens")] = 512
    rate: Annotated[float, option("Largest learning rate.", above=0)] = 5e-4
    kl: Annotated[
        float,
        option(
            "Weight of the divergence from the target's distribution; the cross-entropy of its tokens has the rest.",
            least=0, most=1,
        ),
    ] = 0.7  # fmt: skip
    window: Annotated[int, option("Draft window K at which acceptance is measured.", least=1, most=256)] = 4
    every: Annotated[int, option("Steps between checkpoints, at which acceptance is looked at.", least=1)] = 100
    seed: fields.Seed = 0
    device: Annotated[Literal["auto", "cpu", "cuda"], option("Where the training runs.")] = "auto"
    threads: fields.EngineThreads = None
