"""Preparation of a run: check its configuration and load its prompts, before anything is connected."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from testbed.channel.access import check_address, require_keys
from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.formats import Example, prompt_ids, worked_examples
from testbed.experiments.inputs.marks import check_references, marker
from testbed.experiments.inputs.padding import check_pad
from testbed.experiments.inputs.state import check_csi
from testbed.experiments.power.recorder import check_power
from testbed.models.bundle import bundled
from testbed.protocols.adaptive import RULES
from testbed.protocols.methods import RunMethod, check_lookahead, run_method
from testbed.protocols.quantise import check_bits
from testbed.protocols.sampling import Sampling
from testbed.ue.dial import check_silence, keys_for
from testbed.ue.load_drafter import check_states, drafter_and_tokenizer
from testbed.ue.prompts import Prompter
from testbed.ue.run import OwnOutput, check_speed, sampling_of
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.predictor import AcceptanceLabels, load_predictor
from testbed.ue.windows.registry import WINDOW_RULES, window_policy

LOG = logging.getLogger(__name__)


class Prompt(msgspec.Struct, frozen=True):
    """A prompt ready to decode."""

    ids: list[int]
    """Token ids. If the prompt follows answers of the model itself, those answers are empty here."""
    example: Example


@dataclass(frozen=True)
class Workload:
    """All that a run decodes, and with what."""

    prompts: list[Prompt]
    warmup: list[Prompt]
    prompter: Prompter | None
    drafter: str
    """GGUF file, or a name in `ue.load_drafter.DRAFTERS`."""
    own: dict[OwnOutput, list[int]] = field(default_factory=dict)
    """The target's own outputs, once they are known; runs of one work share them."""


def prepare(config: RunConfig, given: Sequence[int | str] | None = None, turns: bool = False) -> Workload:
    """Check a configuration and load its prompts.

    Args:
        given: prompts instead of the data set, as texts, or one as ids; None: the data set.
        turns: whether later turns of conversations are prompts, too, as `execute` decodes them; else only first ones.

    Raises:
        BadInput: anything that cannot be used.
    """
    _check(config)
    bundle = bundled()
    drafter, directory = drafter_and_tokenizer(config.drafter, config.tokenizer, (bundle.drafter, bundle.tokenizer))
    if given is not None and not given:
        raise BadInput("the prompt is empty")
    by_ids = given is not None and isinstance(given[0], int)
    if by_ids and config.tokenizer is None:
        directory = None
    if directory is None and not by_ids:
        raise BadInput("which tokenizer? give --tokenizer DIR, the directory of tokenizer.json")
    if given is not None and by_ids:
        readable = directory is not None and (directory / "tokenizer.json").exists()
        prompter = Prompter(directory) if directory is not None and readable else None
        prompt = Prompt([int(i) for i in given], Example(""))
        return Workload([prompt], [prompt][: config.warmup], prompter, drafter)
    assert directory is not None
    if given is not None:
        examples, limit = [Example(str(text)) for text in given], len(given)
    else:
        wanted = None if config.limit is None else config.limit + config.warmup + config.shots
        examples = load_dataset(config.dataset, wanted, turns)
        limit = min(config.limit or len(examples), max(1, len(examples) - config.shots))
    shots = worked_examples(examples[len(examples) - config.shots :]) if config.shots else []
    prompter = Prompter(directory, config.prompt_format, shots)
    prompts = [Prompt(prompt_ids(prompter, e), e) for e in examples]
    if given is None:
        check_references(config.scorer, examples[:limit])
    rest = [p for p in prompts[limit : len(prompts) - config.shots] if not p.example.unanswered] or prompts[:1]
    return Workload(prompts[:limit], rest[: config.warmup], prompter, drafter)


def room(prompt: Prompt, max_tokens: int) -> int:
    """Tokens that a prompt may have once the model's own answers are known: as a prompt, a text may have other tokens
    than as an output, so twice their number is provided for.
    """
    return len(prompt.ids) + 2 * max_tokens * len(prompt.example.unanswered)


def check_window_rule(rule: str, predictor: str | None) -> None:
    """Refuse a window rule that cannot be used.

    Raises:
        BadInput: unknown, a predictor that it does not need, or none that it does.
    """
    if WINDOW_RULES.choose(rule).predictor:
        load_predictor(predictor_directory(predictor))
    elif predictor is not None:
        takers = " or ".join(kind for kind, one in WINDOW_RULES.items() if one.predictor)
        raise BadInput(f"a {rule} window needs no predictor: give --window-rule {takers} with --predictor")


def policy_of(config: RunConfig, drafter: str) -> WindowPolicy:
    """The window policy of a run.

    Args:
        drafter: fingerprint of its weights.

    Raises:
        BadInput: the predictor cannot be used, or was trained for another drafter.
    """
    if not WINDOW_RULES.choose(config.window_rule).predictor:
        return window_policy(config.window_rule, config.window)
    predictor = load_predictor(predictor_directory(config.predictor))
    predictor.check_drafter(drafter)
    labels = predictor.info.labels
    others = unlabelled(config, labels)
    if others:
        LOG.warning(
            "the predictor was labelled %s; its acceptance probabilities are not calibrated for %s",
            labels, ", ".join(others),
        )  # fmt: skip
    return window_policy(config.window_rule, config.window, predictor)


def unlabelled(config: RunConfig, labels: AcceptanceLabels) -> list[str]:
    """Methods of a run that accept tokens by another rule than a predictor's labels: by rejection sampling (WISP, eq.
    1) with other options, or under a judge with another θ. Which judge it is, the base station decides.
    """
    sampling = sampling_of(config)

    def agrees(method: RunMethod) -> bool:
        how = method.sampling(sampling)
        if not how.greedy:  # coupled samples are accepted by another rule
            return how == Sampling(labels.temperature, labels.top_k, labels.top_p)
        if method.judged and config.threshold > 0:
            return labels.temperature == 0 and labels.threshold == config.threshold
        return labels.temperature == labels.threshold == 0

    drafting = (one for one in map(run_method, config.methods) if one.drafts)
    return [one.kind for one in drafting if not agrees(one)]


def predictor_directory(given: str | None) -> Path:
    """Directory of the predictor that was asked for, or of the bundled one."""
    return Path(given) if given else bundled().require("predictor")


def _check(config: RunConfig) -> None:
    """Refuse what can be refused before any file is read."""
    for method in config.methods:
        run_method(method)
    check_lookahead(config.lookahead, config.methods)
    check_window_rule(config.window_rule, config.predictor)
    if config.drafter is not None:
        check_states(config.drafter, config.methods, config.states)
    check_speed(config.speed_tps, config.accept_slower)
    if config.auto_rule not in RULES:
        raise BadInput(f"unknown auto-rule {config.auto_rule!r}; known: {', '.join(RULES)}")
    check_bits(config.hidden_bits)
    check_pad(config.pad, config.methods)
    sampling_of(config)
    check_csi(config.csi)
    marker(config.scorer, config.run_code)
    keys_for(config.bs, config.keys, config.insecure)
    check_silence(config.failover_s)
    check_power(config)
    if config.local_bs is not None:
        require_keys([check_address(config.local_bs)], config.keys, config.insecure)
