"""Checks of a distillation before any long work: files of the target, shape of the drafter, prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from testbed.assets.model_names import named
from testbed.bs.engines.target import Target, describe, fields_of, find
from testbed.errors import BadInput
from testbed.experiments.distill.config import DistillConfig
from testbed.experiments.distill.invented import MOST_TOKENS
from testbed.experiments.distill.vocabulary import frequent_ids
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.formats import prompt_ids
from testbed.experiments.inputs.pair import target_for
from testbed.files import json_object
from testbed.protocols.vocabulary import tokenizer_file
from testbed.ue.prompts import Prompter


class Distillation(NamedTuple):
    """What a distillation works with."""

    model: Path
    """The target's Hugging Face directory, whose weights the drafter begins with."""
    target: Target
    """The target as the engine loads it."""
    layers: tuple[int, ...]
    """Indices of the target's layers that the drafter takes."""
    prompts: list[list[int]]
    """Token ids of each prompt of the training data; none is held out."""
    held_out: list[list[int]]
    """Token ids of each prompt that acceptance is measured on."""
    prompter: Prompter

    def positions(self, config: DistillConfig) -> int:
        """Positions that an engine needs for answers to these prompts, and to invented ones."""
        longest = max(map(len, [*self.prompts, *self.held_out]))
        if config.invented:
            longest = max(longest, len(self.prompter.ids("?")) + 2 * MOST_TOKENS)
        return longest + config.max_tokens + 1


class _Layers(msgspec.Struct):
    num_hidden_layers: Annotated[int, msgspec.Meta(ge=0, le=2**16)] = 0


def _layers(model: Path) -> int:
    """Number of the target's layers."""
    path = model / "config.json"
    return fields_of(json_object(path), _Layers, path).num_hidden_layers


def prepared(config: DistillConfig) -> Distillation:
    """Check a configuration and load its prompts.

    Raises:
        BadInput: a target, shape or data set that cannot be used.
    """
    from testbed.models.distill.student import StudentShape, check_student, chosen_layers

    model = find(named(config.target, "target"))
    if not model.is_dir():
        raise BadInput(f"{model} is a file; give --target a Hugging Face directory, whose layers can be trained")
    tokenizer_file(model)
    target = describe(target_for(config.engine, config.target))
    layers = chosen_layers(config.layers, _layers(model))
    check_student(model, StudentShape(layers, config.hidden), quantised=config.gguf != "f16")
    if config.vocabulary is not None:
        frequent_ids((), model, config.vocabulary, target.end_ids)
    prompter = Prompter(target.path, config.prompt_format)
    prompts = _prompts(config, prompter)
    work = Distillation(model, target, layers, prompts[config.held_out :], prompts[: config.held_out], prompter)
    _check_room(work, config)
    return work


def _prompts(config: DistillConfig, prompter: Prompter) -> list[list[int]]:
    """Ids of all prompts, each once, the held-out ones first: a greater `limit` adds to those of the training."""
    examples = load_dataset(config.prompts, config.limit + config.held_out)
    prompts = dict.fromkeys(tuple(prompt_ids(prompter, example)) for example in examples)
    if len(prompts) <= config.held_out:
        raise BadInput(
            f"{config.prompts} has {len(prompts)} different prompts among the first {len(examples)}: none is left "
            f"beside --held-out {config.held_out}"
        )
    return [list(ids) for ids in prompts]


def _check_room(work: Distillation, config: DistillConfig) -> None:
    prompts = [*work.held_out, *work.prompts]
    if work.positions(config) > work.target.max_positions:
        raise BadInput(
            f"prompts of {work.positions(config) - config.max_tokens - 1} tokens plus {config.max_tokens} output "
            f"tokens exceed the target's context of {work.target.max_positions}; lower --max-tokens"
        )
    if all(len(prompt) >= config.length for prompt in prompts):
        raise BadInput(f"every prompt has {config.length} tokens or more, so no answer is read; raise --length")
