"""Prompts of a given length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from testbed.errors import BadInput
from testbed.experiments.runs.prepare import Prompt, Workload


def drawn(work: Workload, tokens: int, seed: int) -> Workload:
    """The same number of prompts, each of `tokens` random tokens of the vocabulary.

    Raises:
        BadInput: no tokenizer gives the size of the vocabulary.
    """
    if work.prompter is None:
        raise BadInput("prompts of a given length need a tokenizer: give --tokenizer DIR")
    random, size = np.random.default_rng([seed, tokens]), work.prompter.vocab_size

    def of(prompts: Sequence[Prompt]) -> list[Prompt]:
        return [Prompt(random.integers(0, size, tokens).tolist(), prompt.example) for prompt in prompts]

    return replace(work, prompts=of(work.prompts), warmup=of(work.warmup), own={})
