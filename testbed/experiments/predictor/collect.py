"""Collecting drafting traces: the real drafter and the real target, greedy verification, prompts in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.config import Config
from testbed.errors import BadInput
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.predictor.traces import TraceMeta, Traces, TraceStore
from testbed.fingerprints import model_fingerprint
from testbed.models.bundle import bundled
from testbed.ue.drafters.base import Drafter, DraftSequence, DraftToken
from testbed.ue.windows.predictor import FEATURES, features
from testbed.ue.windows.rules import FixedWindow

CHUNK = 25
"""Prompts of a chunk: what an interruption costs at most."""
LANES = 16
"""Prompts under way at once, each with its window in every pass."""

Progress = Callable[[int, int], None]
"""Prompts done, and in all."""


class TraceCollectConfig(Config, frozen=True):
    """What `testbed predictor collect` does."""

    dataset: str = "bundled:calibration"
    prompts: int = 500
    first: int = 0
    window: int = 8
    max_tokens: int = 256
    engine: str = "vllm"
    dtype: str = "float32"
    model: str | None = None
    """Target: directory or Hugging Face id; None: the bundled one."""
    drafter: str | None = None
    """GGUF file; None: the bundled one."""


def collect(config: TraceCollectConfig, out: Path, told: Progress) -> TraceStore:
    """Decode prompts and write down every drafted token, chunk by chunk; chunks that are there are left as they are.

    Raises:
        BadInput: a configuration that cannot be used, or a directory of another collection.
        EngineError: the engine failed.
    """
    FixedWindow(config.window)
    if config.first < 0 or config.prompts < 1 or config.max_tokens < 1:
        raise BadInput("prompts and max-tokens must be at least 1, and first not negative")
    if config.drafter and not config.model:
        raise BadInput("a drafter of your own needs its target: give --model too")
    from testbed.bs.engines.target import find

    target = find(config.model or str(bundled().require("target")))
    drafter = Path(config.drafter) if config.drafter else bundled().require("drafter")
    questions = [e.question for e in load_dataset(config.dataset, config.first + config.prompts)][config.first :]
    if len(questions) < config.prompts:
        raise BadInput(f"{config.dataset} has {len(questions)} prompts from {config.first} on, not {config.prompts}")
    store = TraceStore(out)
    store.create(_meta(config, drafter, target))
    todo = [n for n in range(-(-config.prompts // CHUNK)) if n not in store.chunks()]
    told(config.prompts - sum(len(_chunk(questions, n)) for n in todo), config.prompts)
    if todo:
        with_models(config, store, (drafter, target), questions, todo, told)
    return store


def _meta(config: TraceCollectConfig, drafter: Path, target: Path) -> TraceMeta:
    return TraceMeta(
        dataset=config.dataset,
        first=config.first,
        prompts=config.prompts,
        window=config.window,
        max_tokens=config.max_tokens,
        engine=config.engine,
        dtype=config.dtype,
        drafter=drafter.name,
        drafter_fingerprint=model_fingerprint(drafter),
        target=config.model or "bundled",
        target_fingerprint=model_fingerprint(target),
    )


def _chunk(questions: Sequence[str], number: int) -> Sequence[str]:
    return questions[number * CHUNK : (number + 1) * CHUNK]


def with_models(
    config: TraceCollectConfig,
    store: TraceStore,
    paths: tuple[Path, Path],
    questions: Sequence[str],
    todo: Sequence[int],
    told: Progress,
) -> None:
    """Load the pair and collect the chunks `todo`."""
    from testbed.bs.engines.registry import leave_a_core, load_engine
    from testbed.bs.engines.target import describe
    from testbed.ue.llama.drafter import LlamaDrafter
    from testbed.ue.prompts import Prompter

    prompter = Prompter(paths[1])
    prompts = {n: [prompter.ids(q) for q in _chunk(questions, n)] for n in todo}
    longest = max(len(ids) for chunk in prompts.values() for ids in chunk)
    leave_a_core()
    target = describe(str(paths[1]))
    engine = load_engine(config.engine, paths[1], dtype=config.dtype, vocab_size=target.vocab_size)
    try:
        drafter = LlamaDrafter(paths[0], prompter.vocab_size, context=longest + config.max_tokens + 1, sequences=LANES)
        try:
            walk = Walk(drafter, engine, config.window, config.max_tokens, target.end_ids)
            done = config.prompts - sum(map(len, prompts.values()))
            for number, chunk in prompts.items():
                store.write(number, walk.run(chunk, config.first + number * CHUNK))
                done += len(chunk)
                told(done, config.prompts)
        finally:
            drafter.close()
    finally:
        engine.close()


@dataclass
class _Lane:
    """One prompt under way."""

    prompt: int
    prompt_len: int
    ids: list[int]
    sequence: DraftSequence
    round: int = 0
    drafted: list[DraftToken] = field(default_factory=list)


@dataclass(frozen=True)
class Walk:
    """Fixed windows and greedy verification, without a link."""

    drafter: Drafter
    engine: VerifyEngine
    window: int
    max_tokens: int
    end_ids: Sequence[int]

    def run(self, prompts: Sequence[Sequence[int]], first: int) -> Traces:
        """Decode prompts, numbered from `first`, `LANES` of them at a time."""
        waiting = iter(enumerate(prompts, first))
        lanes: list[_Lane] = []
        rows: list[tuple[int, int, int, DraftToken, int]] = []
        try:
            while True:
                lanes += [self._open(*one) for _, one in zip(range(LANES - len(lanes)), waiting, strict=False)]
                if not lanes:
                    return _traces(rows)
                for lane in lanes:
                    self._draft(lane)
                results = self.engine.verify([_request(lane) for lane in lanes])
                for lane, result in zip(list(lanes), results, strict=True):
                    rows += self._judge(lane, result.argmax.tolist())
                    if self._ended(lane):
                        self._close(lane)
                        lanes.remove(lane)
        finally:
            for lane in lanes:
                self._close(lane)

    def _open(self, prompt: int, ids: Sequence[int]) -> _Lane:
        return _Lane(prompt, len(ids), list(ids), self.drafter.open(ids))

    def _close(self, lane: _Lane) -> None:
        lane.sequence.close()
        self.engine.release(str(lane.prompt))

    def _draft(self, lane: _Lane) -> None:
        room = min(self.window, self.max_tokens - (len(lane.ids) - lane.prompt_len))
        lane.drafted = [lane.sequence.draft_one()]
        while len(lane.drafted) < room and lane.drafted[-1].id not in self.end_ids:
            lane.drafted.append(lane.sequence.draft_one())

    def _judge(self, lane: _Lane, argmax: list[int]) -> Iterator[tuple[int, int, int, DraftToken, int]]:
        """Rows (prompt, round, position, token, label) of a round, label -1 after the first rejection; commits it."""
        kept = 0
        while kept < len(lane.drafted) and lane.drafted[kept].id == argmax[kept]:
            kept += 1
        added = [*(token.id for token in lane.drafted[:kept]), argmax[kept]]
        ends = [i for i, token in enumerate(added) if token in self.end_ids]
        rows = [
            (lane.prompt, lane.round, i + 1, token, 1 if i < kept else 0 if i == kept else -1)
            for i, token in enumerate(lane.drafted)
        ]
        lane.ids += added[: ends[0] + 1] if ends else added
        if not self._ended(lane):
            lane.sequence.commit(kept, argmax[kept])
        lane.round += 1
        return iter(rows)

    def _ended(self, lane: _Lane) -> bool:
        return lane.ids[-1] in self.end_ids or len(lane.ids) - lane.prompt_len >= self.max_tokens


def _request(lane: _Lane) -> VerifyRequest:
    draft = np.array([token.id for token in lane.drafted], np.int32)
    return VerifyRequest(str(lane.prompt), np.array(lane.ids, np.int32), draft)


def _traces(rows: Sequence[tuple[int, int, int, DraftToken, int]]) -> Traces:
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
