"""Records the drafter's tokens after every prefix of the target's outputs; `ue/drafters/recorded.py` replays them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np

from testbed import fields
from testbed.assets.fingerprints import model_fingerprint
from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.config import Config
from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.formats import prompt_ids
from testbed.experiments.inputs.pair import drafter_for, target_for
from testbed.experiments.lockstep.decoding import Decoding, Lockstep, draft_window
from testbed.options import option
from testbed.ue.drafters.base import Drafter, DraftToken
from testbed.ue.drafters.recorded import DraftRecording, Recorded, Statistics

LANES = 16
"""Prompts decoded concurrently."""

Progress = Callable[[int, int], None]
"""Called with the numbers of finished and of all prompts."""


class DraftsConfig(Config, frozen=True, kw_only=True):
    """Configuration of `testbed cell drafts`.

    Raises:
        BadInput: a value out of range, or a drafter without its target.
    """

    dataset: fields.Dataset = "bundled:test"
    prompts: fields.Prompts = 400
    depth: Annotated[int, option("Longest window that can be replayed.", least=1, unit="tokens")] = 16
    max_tokens: fields.MaxTokens = 256
    engine: fields.Engine = "vllm"
    dtype: fields.Dtype = "float32"
    model: fields.Target = None
    drafter: fields.DrafterFile = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drafter and not self.model:
            raise BadInput("--drafter also needs --model, the target that it drafts for")


def record(config: DraftsConfig, progress: Progress) -> DraftRecording:
    """Load the pair, decode the prompts, and record all drafted tokens.

    Raises:
        BadInput: too few prompts, or unusable models.
    """
    from testbed.bs.engines.registry import leave_a_core, load_engine
    from testbed.bs.engines.target import describe
    from testbed.ue.load_drafter import DrafterOptions, load_drafter
    from testbed.ue.prompts import Prompter

    target = describe(target_for(config.engine, config.model))
    path = drafter_for(config.drafter)
    examples = load_dataset(config.dataset, config.prompts)
    if len(examples) < config.prompts:
        raise BadInput(f"{config.dataset} has {len(examples)} prompts, not {config.prompts}")
    prompter = Prompter(target.path)
    prompts = [prompt_ids(prompter, example) for example in examples]
    leave_a_core()
    engine = load_engine(config.engine, target.path, dtype=config.dtype, vocab_size=target.vocab_size)
    try:
        context = max(map(len, prompts)) + config.max_tokens + 2 * config.depth + 2
        options = DrafterOptions(prompter.vocab_size, context=context, sequences=LANES, tokenizer=target.path)
        drafter = load_drafter(str(path), options)
        try:
            found = record_all(drafter, engine, prompts, config, target.end_ids, progress)
        finally:
            drafter.close()
    finally:
        engine.close()
    return DraftRecording(
        drafter=drafter.fingerprint, target=model_fingerprint(target.path), tokenizer=prompter.fingerprint,
        vocab_size=prompter.vocab_size, depth=config.depth, end_ids=list(target.end_ids), prompts=found,
    )  # fmt: skip


def record_all(
    drafter: Drafter,
    engine: VerifyEngine,
    prompts: Sequence[Sequence[int]],
    config: DraftsConfig,
    end_ids: Sequence[int],
    progress: Progress,
) -> list[Recorded]:
    """Record all prompts, `LANES` at a time and equal ones once; returns them in order."""
    asked = [tuple(prompt) for prompt in prompts]
    distinct = list(dict.fromkeys(asked))
    decodings = (_decode(drafter, str(i), prompt, config, frozenset(end_ids)) for i, prompt in enumerate(distinct))
    found: dict[int, Recorded] = {}
    for number, one in Lockstep(engine, LANES).run(decodings):
        found[number] = one
        progress(len(found), len(distinct))
    numbers = {prompt: number for number, prompt in enumerate(distinct)}
    return [found[numbers[prompt]] for prompt in asked]


def _decode(
    drafter: Drafter, name: str, prompt: Sequence[int], config: DraftsConfig, ends: frozenset[int]
) -> Decoding[Recorded]:
    """Decode one prompt in windows of `depth` tokens, plus one token that follows a fully accepted window."""
    output: list[int] = []
    drafted: list[Statistics] = []
    branches: dict[int, list[Statistics]] = {}
    sequence = drafter.open(prompt)
    try:
        while True:
            window = draft_window(sequence, config.depth + 1, ends)
            ids = np.array([token.id for token in window[: config.depth]], np.int32)
            answer = yield VerifyRequest(name, np.array([*prompt, *output], np.int32), ids)
            right = answer.argmax.tolist()[: len(window)]
            kept = next((i for i, (w, r) in enumerate(zip(window, right, strict=True)) if w.id != r), len(right))
            drafted += [_statistics(token) for token in window[: kept + 1]]
            if kept < len(right):
                rest = window[kept + 1 :]
                if window[-1].id not in ends:
                    rest += draft_window(sequence, config.depth - 1 - len(rest), ends)
                branches[len(output) + kept] = [_statistics(token) for token in rest[: config.depth - 1]]
            added = right[: kept + 1]
            output += added
            if output[-1] in ends or len(output) >= config.max_tokens:
                break
            sequence.commit(len(added) - 1, added[-1])
    finally:
        sequence.close()
    size = min(len(output), config.max_tokens)
    return Recorded(
        prompt=list(prompt), output=output[:size], drafted=drafted[:size],
        branches={i: branch for i, branch in branches.items() if i < size},
    )  # fmt: skip


def _statistics(token: DraftToken) -> Statistics:
    return token.id, float(token.top1), float(token.entropy), float(token.margin), float(token.logit_std)
