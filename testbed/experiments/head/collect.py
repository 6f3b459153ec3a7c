"""Collecting episodes for a decision head: speculative decoding of a data set, chunk by chunk, resumable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from testbed.bs.engines.base import VerifyEngine
from testbed.bs.engines.llama_options import context_options
from testbed.bs.engines.model_files import check_files
from testbed.bs.engines.registry import ENGINES, leave_a_core, load_engine
from testbed.bs.engines.target import Target
from testbed.config import RunConfig, resolved
from testbed.decision_head.episodes import META, EpisodeStore, Meta
from testbed.errors import BadInput
from testbed.experiments.head.config import EpisodeCollectConfig
from testbed.experiments.head.decoding import POLICIES, Episode, EpisodeSetup, chunk_of, decode_episode
from testbed.experiments.head.summary import summary
from testbed.experiments.inputs.pair import pair_paths
from testbed.experiments.inputs.scorers import answer_scorer
from testbed.experiments.lockstep.answers import AnswerTask
from testbed.experiments.lockstep.completions import Completer
from testbed.experiments.lockstep.decoding import NOTHING, Lockstep
from testbed.experiments.results.claims import compare_inputs
from testbed.experiments.runs.execute import drafter_of
from testbed.experiments.runs.prepare import Workload, prepare
from testbed.files import held
from testbed.llama.context import MAX_SEQUENCES
from testbed.llama.gguf_rules import check_gguf
from testbed.llama.origin import states_fingerprint
from testbed.models.bundle import BUNDLED
from testbed.models.real.from_gguf import quantisation
from testbed.ue.drafters.base import Drafter

CHUNK = 50
"""Prompts per chunk."""
Progress = Callable[[int, int, str], None]
"""Called with the number done, the total and the unit."""


def collect(config: EpisodeCollectConfig, out: Path, progress: Progress) -> dict[str, Any]:
    """Collect episodes into a directory, resuming a partial collection; returns `summary` and the work spent.

    Policy `oracle` writes labels too.

    Raises:
        BadInput: unusable settings or models, or `out` holds another collection.
        EngineError: the engine failed; chunks already written are kept.
    """
    check(config)
    score, _ = answer_scorer(config.scorer)  # labels compare with the target's own answer in any case
    target, drafter_path = pair_paths(config.model, config.drafter, config.engine)
    sizes = _sizes(config, target)
    work = _work(config, target, drafter_path)
    prompts = [prompt.ids for prompt in work.prompts[config.first :]]
    _check_room(config, prompts, sizes.positions)
    assert work.prompter is not None
    task = AnswerTask(Completer(target.end_ids), config.max_tokens, work.prompter.text, score)
    spent = NOTHING
    leave_a_core(config.threads)
    store = EpisodeStore(out)
    with contextlib.closing(drafter_of(_run(config), work)) as drafter, held(out, in_use(out)):
        store.create(_meta(config, store, drafter, drafter_path, target.path, sizes.hidden, len(prompts)))
        compare_inputs(resolved(config), out)
        setup = EpisodeSetup(drafter, task, config.window, config.policy, config.explore, config.seed)
        if _to_do(store, setup, prompts):
            with contextlib.closing(load_target(config, target)) as engine:
                lockstep = Lockstep(engine, config.concurrency)
                fill(store, setup, prompts, lockstep, progress)
                spent = lockstep.spent()
    return summary(store, target.path) | spent


def in_use(directory: Path) -> str:
    """Why a collection is refused that another process collects or labels."""
    return f"another process collects or labels the episodes in {directory}; wait for it"


def fill(
    store: EpisodeStore, setup: EpisodeSetup, prompts: Sequence[Sequence[int]], lockstep: Lockstep, progress: Progress
) -> None:
    """Decode the prompts of missing chunks, and write each chunk once all its prompts are done."""
    first, numbers = store.meta.first, _to_do(store, setup, prompts)
    progress(len(prompts) - len(numbers), len(prompts), "prompts")
    episodes: dict[int, list[Episode]] = {}
    ended = len(prompts) - len(numbers)
    for _, episode in lockstep.run(decode_episode(setup, first + i, prompts[i]) for i in numbers):
        ended += 1
        progress(ended, len(prompts), "prompts")
        chunk = (episode.prompt - first) // CHUNK
        whole = episodes.setdefault(chunk, [])
        whole.append(episode)
        if len(whole) == min(CHUNK, len(prompts) - chunk * CHUNK):
            _write(store, chunk, sorted(episodes.pop(chunk), key=lambda e: e.prompt), setup.policy)


def _to_do(store: EpisodeStore, setup: EpisodeSetup, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Indices of prompts whose chunks are missing, or lack the labels that policy `oracle` makes."""
    done = set(store.chunks())
    if setup.policy == "oracle":
        done &= set(store.labelled())
    return [i for i in range(len(prompts)) if i // CHUNK not in done]


def _write(store: EpisodeStore, chunk: int, episodes: Sequence[Episode], policy: str) -> None:
    store.write(chunk, chunk_of(episodes, store.meta.drafter_hidden, store.meta.target_hidden))
    if policy == "oracle":
        labels = np.array([label for episode in episodes for label in episode.labels], np.int8)
        store.write_labels(chunk, labels, sum(episode.completions for episode in episodes))


def check(config: EpisodeCollectConfig) -> None:
    """Validate the settings before any file is read.

    Raises:
        BadInput: a value out of range.
    """
    if config.policy not in POLICIES:
        raise BadInput(f"unknown policy {config.policy!r}; known: {', '.join(POLICIES)}")
    if not 1 <= config.concurrency <= MAX_SEQUENCES:
        raise BadInput(f"concurrency must lie in 1..{MAX_SEQUENCES}, not {config.concurrency}")
    if not ENGINES.choose(config.engine).needs_model:
        raise BadInput(f"the {config.engine} engine loads no target: its hidden states teach no head")
    if config.drafter and not config.model:
        raise BadInput("--drafter also needs --model, the target that it drafts for")
    if config.model and not config.drafter:
        raise BadInput("--model also needs --drafter FILE.gguf, the drafter of that target")


def _run(config: EpisodeCollectConfig) -> RunConfig:
    """The equivalent run configuration of a UE: window, output length and drafter options."""
    return RunConfig(
        window=config.window,
        max_tokens=config.max_tokens,
        dataset=config.dataset,
        limit=config.first + config.prompts,
        prompt_format=config.prompt_format,
        shots=config.shots,
        warmup=0,
        concurrency=config.concurrency,
        threads=config.threads,
        gpu_layers=config.gpu_layers,
        kv_type=config.kv_type,
    )


def _work(config: EpisodeCollectConfig, target: Target, drafter: Path) -> Workload:
    """The data set's prompts, prepared as for a run."""
    run = msgspec.structs.replace(_run(config), drafter=str(drafter), tokenizer=str(target.path))
    work = prepare(run)
    if len(work.prompts) <= config.first:
        raise BadInput(f"{config.dataset} has {len(work.prompts)} prompts; --first must be smaller")
    return work


def load_target(config: EpisodeCollectConfig, target: Target) -> VerifyEngine:
    """Load the target on its engine."""
    options = ENGINES.choose(config.engine).keywords({"memory_share": config.memory_share})
    return load_engine(config.engine, target.path, dtype=config.dtype, vocab_size=target.vocab_size, **options)


class TargetSizes(NamedTuple):
    """Sizes of a target that its engine can load."""

    hidden: int
    positions: int


def _sizes(config: EpisodeCollectConfig, target: Target) -> TargetSizes:
    """Sizes of the target, once the files are found to be usable by the engine.

    Raises:
        ModelError: they are not, or they are in another format than the engine's.
    """
    if not ENGINES.choose(config.engine).gguf:
        files = check_files(target.path, dtype=config.dtype, vocab_size=target.vocab_size, max_model_len=None)
        return TargetSizes(files.hidden_size, files.max_positions)
    positions, header = context_options(target.path).context, check_gguf(target.path)
    hidden = int(header.scalars[f"{header.scalars['general.architecture']}.embedding_length"])
    return TargetSizes(hidden, positions or target.max_positions)


def _check_room(config: EpisodeCollectConfig, prompts: Sequence[Sequence[int]], positions: int) -> None:
    longest = max(map(len, prompts))
    if longest + config.max_tokens + 1 > positions:
        raise BadInput(
            f"a prompt of {longest} tokens plus {config.max_tokens} output tokens exceeds the target's context of "
            f"{positions}; lower --max-tokens"
        )


def _meta(
    config: EpisodeCollectConfig,
    store: EpisodeStore,
    drafter: Drafter,
    drafter_path: Path,
    target: Path,
    hidden: int,
    prompts: int,
) -> Meta:
    """Metadata of the collection. Except for policy `oracle`, a scorer already chosen for labels is kept."""
    meta = Meta(
        dataset=config.dataset,
        first=config.first,
        prompts=prompts,
        seed=config.seed,
        window=config.window,
        max_tokens=config.max_tokens,
        policy=config.policy,
        explore=config.explore if config.policy == "explore" else 0.0,
        engine=f"{config.engine} {quantisation(target) if target.is_file() else config.dtype}",
        drafter=config.drafter or BUNDLED,
        drafter_fingerprint=drafter.fingerprint,
        drafter_quantisation=quantisation(drafter_path),
        target=config.model or BUNDLED,
        target_fingerprint=states_fingerprint(target),
        drafter_hidden=drafter.hidden_size,
        target_hidden=hidden,
        scorer=config.scorer,
        prompt_format=config.prompt_format,
        shots=config.shots,
    )
    if config.policy != "oracle" and (store.directory / META).exists():
        meta = msgspec.structs.replace(meta, scorer=store.open().scorer)
    return meta
