"""Collects drafting traces with the real drafter and target: verification of many prompts in lockstep."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from testbed import fields
from testbed.assets.fingerprints import model_fingerprint
from testbed.bs.engines.base import VerifyEngine
from testbed.bs.judging.registry import JUDGES, judge_kind, make_judge
from testbed.config import Config, resolved
from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.formats import Example, prompt_ids
from testbed.experiments.inputs.pair import drafter_for, target_for
from testbed.experiments.lockstep.acceptance import STRICT, AcceptanceRule, JudgedRule, SampledRule
from testbed.experiments.lockstep.decoding import Decoding, Lockstep, draft_window
from testbed.experiments.predictor.traces import CHUNK, TraceMeta, Traces, TraceStore
from testbed.experiments.results.claims import compare_inputs
from testbed.files import held
from testbed.models.bundle import head_directory
from testbed.options import option
from testbed.protocols.sampling import Sampling
from testbed.ue.drafters.base import Drafter, DraftToken
from testbed.ue.windows.predictor import FEATURES, AcceptanceLabels, features

LANES = 16
"""Prompts decoded concurrently, each with its window in every pass."""

Progress = Callable[[int, int], None]
"""Called with the numbers of finished and of all prompts."""


class TraceCollectConfig(Config, frozen=True):
    """Configuration of `testbed predictor collect`."""

    dataset: fields.Dataset = "bundled:calibration"
    prompts: fields.Prompts = 500
    first: fields.First = 0
    prompt_format: fields.PromptFormat = "auto"
    max_tokens: fields.MaxTokens = 256
    window: fields.Window = 8
    engine: fields.Engine = "vllm"
    dtype: fields.Dtype = "float32"
    model: fields.Target = None
    drafter: fields.DrafterFile = None
    temperature: Annotated[
        float, option("Accept tokens by rejection sampling at this temperature; 0: greedily.", least=0, panel="Labels")
    ] = 0.0
    top_k: Annotated[int, option("Sample from the k most likely tokens only; 0 for all.", least=0)] = 0
    top_p: Annotated[float, option("Nucleus sampling.", above=0, most=1)] = 1.0
    judge: fields.Judge = None
    head: fields.Head = None
    threshold: fields.Threshold = 0.0
    seed: Annotated[int, option("Seed of sampled tokens.", least=0)] = 0

    @property
    def labels(self) -> AcceptanceLabels:
        """How tokens are accepted.

        Raises:
            BadInput: options that do not go together.
        """
        if self.temperature > 0 and self.threshold > 0:
            raise BadInput("tokens are accepted by sampling or by a judge: give --temperature or --threshold")
        kind = judge_kind(self.judge or ("head" if self.threshold > 0 else None), self.head, None)
        if (kind == "strict") != (self.threshold == 0):
            raise BadInput(f"judge {kind} needs --threshold above 0" if kind != "strict" else "judge strict has θ = 0")
        return AcceptanceLabels(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, judge=kind, head=self.head,
            threshold=self.threshold,
        )  # fmt: skip


def collect(config: TraceCollectConfig, out: Path, progress: Progress) -> TraceStore:
    """Decode prompts and record every drafted token, chunk by chunk; existing chunks are kept.

    Raises:
        BadInput: an invalid configuration, or a directory of another collection.
        EngineError: the engine failed.
    """
    if config.drafter and not config.model:
        raise BadInput("--drafter also needs --model, the target that it drafts for")
    from testbed.bs.engines.target import find

    target = find(target_for(config.engine, config.model))
    drafter = drafter_for(config.drafter)
    examples = load_dataset(config.dataset, config.first + config.prompts)[config.first :]
    if len(examples) < config.prompts:
        raise BadInput(f"{config.dataset} has {len(examples)} prompts from {config.first} on, not {config.prompts}")
    store, meta = TraceStore(out), _meta(config, drafter, target)
    with held(out, f"another process collects traces in {out}; wait for it, or choose another --out"):
        store.create(meta)
        compare_inputs(resolved(config), out)
        todo = store.missing()
        progress(config.prompts - sum(len(_chunk(examples, n)) for n in todo), config.prompts)
        if todo:
            with_models(config, store, (drafter, target), examples, todo, progress)
    return store


def _meta(config: TraceCollectConfig, drafter: Path, target: Path) -> TraceMeta:
    from testbed.ue.load_drafter import fingerprint_of

    return TraceMeta(
        dataset=config.dataset,
        first=config.first,
        prompts=config.prompts,
        window=config.window,
        max_tokens=config.max_tokens,
        engine=config.engine,
        dtype=config.dtype,
        drafter=drafter.name,
        drafter_fingerprint=fingerprint_of(drafter, target),
        target=config.model or "bundled",
        target_fingerprint=model_fingerprint(target),
        prompt_format=config.prompt_format,
        labels=config.labels,
    )


def _chunk(examples: Sequence[Example], number: int) -> Sequence[Example]:
    return examples[number * CHUNK : (number + 1) * CHUNK]


def with_models(
    config: TraceCollectConfig,
    store: TraceStore,
    paths: tuple[Path, Path],
    examples: Sequence[Example],
    todo: Sequence[int],
    progress: Progress,
) -> None:
    """Load the pair and collect the chunks in `todo`."""
    from testbed.bs.engines.registry import leave_a_core, load_engine
    from testbed.bs.engines.target import describe
    from testbed.ue.load_drafter import DrafterOptions, load_drafter
    from testbed.ue.prompts import Prompter

    prompter = Prompter(paths[1], config.prompt_format)
    prompts = {n: [prompt_ids(prompter, one) for one in _chunk(examples, n)] for n in todo}
    longest = max(len(ids) for chunk in prompts.values() for ids in chunk)
    leave_a_core()
    target = describe(str(paths[1]))
    engine = load_engine(config.engine, paths[1], dtype=config.dtype, vocab_size=target.vocab_size)
    try:
        options = DrafterOptions(
            prompter.vocab_size, context=longest + config.max_tokens + 1, sequences=LANES, tokenizer=paths[1]
        )
        drafter = load_drafter(str(paths[0]), options)
        try:
            rule = _rule(config, drafter, target.path, engine.hidden_size)
            decoder = TraceDecoder(drafter, engine, config.window, config.max_tokens, target.end_ids, rule)
            done = config.prompts - sum(map(len, prompts.values()))
            for number, chunk in prompts.items():
                store.write(number, decoder.run(chunk, config.first + number * CHUNK))
                done += len(chunk)
                progress(done, config.prompts)
        finally:
            drafter.close()
    finally:
        engine.close()


def _rule(config: TraceCollectConfig, drafter: Drafter, target: Path, hidden_size: int) -> AcceptanceRule:
    """How tokens are accepted. Heads judge as on a perfect channel.

    Raises:
        BadInput: a head that was not made for this pair.
    """
    labels = config.labels
    if labels.temperature > 0:
        return SampledRule(Sampling(labels.temperature, labels.top_k, labels.top_p), config.seed)
    if labels.threshold == 0:
        return STRICT
    head = str(head_directory(labels.head)) if JUDGES.choose(labels.judge).needs_head else None
    judge = make_judge(labels.judge, head, None, target, hidden_size)
    judge.check(drafter.fingerprint, drafter.hidden_size)
    return JudgedRule(judge, labels.threshold)


TraceRow = tuple[int, int, int, DraftToken, int]
"""Prompt, round, position in the window, token, and label: 1 accepted, 0 the first rejection, -1 after it."""


@dataclass(frozen=True)
class TraceDecoder:
    """Drafts fixed windows and verifies them, without a link."""

    drafter: Drafter
    engine: VerifyEngine
    window: int
    max_tokens: int
    end_ids: Sequence[int]
    rule: AcceptanceRule = STRICT

    def run(self, prompts: Sequence[Sequence[int]], first: int) -> Traces:
        """Decode prompts, numbered from `first`, `LANES` at a time; tokens are in the order of passes."""
        rows: list[TraceRow] = []
        decodings = (self._decode(number, prompt, rows) for number, prompt in enumerate(prompts, first))
        for _ in Lockstep(self.engine, LANES).run(decodings):
            pass
        return _traces(rows)

    def _decode(self, number: int, prompt: Sequence[int], rows: list[TraceRow]) -> Decoding[None]:
        """Decode one prompt, appending its drafted tokens to `rows`."""
        text, end, sampler = list(prompt), len(prompt) + self.max_tokens, self.rule.sampler(number)
        sequence = self.drafter.open(prompt, choose=sampler)
        try:
            for round_ in itertools.count():
                if sampler is not None:
                    sampler.begin(round_)
                tokens = draft_window(sequence, min(self.window, end - len(text)), self.end_ids)
                result = yield self.rule.request(str(number), text, tokens)
                kept, token = self.rule.keep(tokens, result, sampler)
                labels = [1] * kept + [0] + [-1] * len(tokens)
                rows += [(number, round_, i + 1, drafted, labels[i]) for i, drafted in enumerate(tokens)]
                added = [*(one.id for one in tokens[:kept]), token]
                ends = [i for i, one in enumerate(added) if one in self.end_ids]
                text += added[: ends[0] + 1] if ends else added
                if ends or len(text) >= end:
                    return
                sequence.commit(kept, token)
        finally:
            sequence.close()


def _traces(rows: Sequence[TraceRow]) -> Traces:
    table = np.array([[*features(token, position), *numbers] for *numbers, position, token, _ in rows], np.float64)
    table = table.reshape(-1, len(FEATURES) + 2)
    label = np.array([row[-1] for row in rows], np.int8)
    known = label >= 0
    stats, prompt, number = table[:, : len(FEATURES)].astype(np.float32), table[:, -2], table[:, -1]
    return Traces(
        prompt=prompt[known].astype(np.int32),
        round=number[known].astype(np.int32),
        features=stats[known],
        accepted=label[known].astype(np.uint8),
        later_prompt=prompt[~known].astype(np.int32),
        later_round=number[~known].astype(np.int32),
        later_features=stats[~known],
    )
