"""Compares decision heads at equal loss of accuracy: θ chosen on calibration problems and reported on test problems.

Answers and rounds depend on the head, the channel state and θ alone, so that no link and no times are simulated.
Problems are decoded in blocks, each kept in a file, so that an interrupted comparison resumes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from testbed.bs.engines.base import VerifyEngine
from testbed.bs.engines.registry import leave_a_core, load_engine
from testbed.bs.engines.target import Target, describe
from testbed.bs.judging.base import Judge, StrictJudge
from testbed.bs.judging.head import HeadJudge
from testbed.config import RunConfig
from testbed.decision_head.head import DecisionHead, check_fits, load_head
from testbed.errors import BadInput
from testbed.experiments.head.config import CompareConfig, check_seeds
from testbed.experiments.head.equal_loss import Reals, Tradeoff, at_equal_loss
from testbed.experiments.head.judged import JudgedSetup, decode_judged
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.inputs.scorers import answer_scorer, expected
from testbed.experiments.lockstep.answers import AnswerTask
from testbed.experiments.lockstep.completions import Completer
from testbed.experiments.lockstep.decoding import Lockstep
from testbed.experiments.results.claims import claimed, kept
from testbed.experiments.runs.execute import drafter_of
from testbed.experiments.runs.memo import MemoEngine
from testbed.experiments.runs.memo_drafter import MemoDrafter, depends_on_passes
from testbed.experiments.runs.prepare import Prompt, Workload, prepare
from testbed.files import file_bytes
from testbed.intervals import Bootstrap
from testbed.llama.origin import states_fingerprint
from testbed.models.bundle import head_directory
from testbed.ue.drafters.after import StatesAfter
from testbed.ue.drafters.base import Drafter

BLOCK = 50
"""Problems per file; their passes are shared by all heads, channels and values of θ."""
CALIBRATION, TEST, STRICT = "calibration", "test", "strict"

Progress = Callable[[int, int, str], None]


class HeadSetting(NamedTuple):
    """One head directory on one channel."""

    name: str
    directory: str
    head: DecisionHead
    channel: int
    """Index of the channel."""

    def key(self, threshold: float) -> str:
        """Key of its outcomes in a block."""
        return f"{self.name} {self.directory} {self.channel} {threshold!r}"


Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Rounds = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class ProblemBlock(msgspec.Struct, frozen=True):
    """Outcomes of some problems: right, tokens and rounds of each, by key of the setting and θ."""

    outcomes: dict[str, tuple[list[bool], list[Tokens], list[Rounds]]]

    def check(self, keys: Collection[str], count: int) -> None:
        """Check that there are outcomes of all settings and problems.

        Raises:
            BadInput: some are missing.
        """
        if not set(keys) <= self.outcomes.keys():
            raise BadInput("it lacks outcomes of a head or θ")
        if any(len(column) != count for columns in self.outcomes.values() for column in columns):
            raise BadInput(f"it has not {count} outcomes of each")


class ProblemSplit(NamedTuple):
    """Problems of one split."""

    name: str
    work: Workload
    starts: Sequence[int]
    """First problem of each block."""

    def size(self, start: int) -> int:
        """Number of problems of the block that begins at `start`."""
        return min(BLOCK, len(self.work.prompts) - start)


def compare(config: CompareConfig, out: Path, progress: Progress) -> dict[str, Any]:
    """Decode what is missing in `out`, and compare; returns the document of `testbed head compare --json`.

    Raises:
        BadInput: unusable heads, models or problems, or `out` holds another comparison.
    """
    target = describe(target_for(config.engine, config.model))
    settings = _settings(config, target)
    splits = [_split(config, CALIBRATION), _split(config, TEST)]
    _check_apart(*splits)
    with claimed(config, out, "comparison"):
        todo = [(split, start) for split in splits for start in split.starts]
        paths = {(split.name, start): out / f"{split.name}-{start:05d}.json" for split, start in todo}
        missing = [(split, start) for split, start in todo if not paths[split.name, start].exists()]
        if missing:
            longest = max((split.work for split in splits), key=lambda work: max(len(p.ids) for p in work.prompts))
            with _models(config, target, longest) as models:
                for done, (split, start) in enumerate(missing, len(todo) - len(missing)):
                    progress(done, len(todo), "blocks")
                    bench = CompareBench(config, target, split, *models)
                    kept(paths[split.name, start], ProblemBlock, lambda b=bench, i=start: b.block(settings, i))  # type: ignore[misc]
        keys = [STRICT, *(one.key(threshold) for one in settings for threshold in config.thresholds)]
        found = {
            split.name: [_block(paths[split.name, start], keys, split.size(start)) for start in split.starts]
            for split in splits
        }
    return _document(config, settings, found)


def _block(path: Path, keys: Collection[str], count: int) -> ProblemBlock:
    """A block that was kept.

    Raises:
        BadInput: it is damaged.
    """
    try:
        found: ProblemBlock = msgspec.json.decode(file_bytes(path), type=ProblemBlock)
        found.check(keys, count)
    except (OSError, BadInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(f"{path} is damaged ({exc}); remove it, and its problems are decoded again") from exc
    return found


def _settings(config: CompareConfig, target: Target) -> list[HeadSetting]:
    if not config.heads:
        raise BadInput("give at least one head")
    check_seeds(config.heads)
    found = []
    for name, directories in config.heads.items():
        for directory in directories:
            head = load_head(head_directory(directory))
            check_fits(head.info, target_fingerprint=states_fingerprint(target.path))
            channels = range(len(config.channels) if head.info.features else 1)  # a blind head does the same on all
            found += [HeadSetting(name, directory, head, channel) for channel in channels]
    return found


def _split(config: CompareConfig, name: str) -> ProblemSplit:
    calibrating = name == CALIBRATION
    dataset, first = (config.calibration, config.first) if calibrating else (config.dataset, 0)
    count = config.calibration_prompts if calibrating else config.prompts
    run = RunConfig(
        dataset=dataset, limit=first + count, warmup=0, max_tokens=config.max_tokens, window=config.window,
        prompt_format=config.prompt_format, shots=config.shots, scorer=config.scorer, drafter=config.drafter,
        tokenizer=config.tokenizer, concurrency=config.concurrency, threads=config.threads,
    )  # fmt: skip
    work = prepare(run)
    prompts = work.prompts[first:]
    if len(prompts) < count:
        raise BadInput(f"{dataset} has fewer than {count} problems after the first {first}")
    score, agreement = answer_scorer(config.scorer)
    if not agreement and any(expected(prompt.example, score) is None for prompt in prompts):
        raise BadInput(f"{dataset} has problems without a reference answer")
    return ProblemSplit(name, Workload(prompts, [], work.prompter, work.drafter), range(0, count, BLOCK))


def _check_apart(calibration: ProblemSplit, test: ProblemSplit) -> None:
    """Refuse problems that θ is chosen on and reported on.

    Raises:
        BadInput: there are such problems.
    """
    known = {tuple(prompt.ids) for prompt in calibration.work.prompts}
    if shared := sum(tuple(prompt.ids) in known for prompt in test.work.prompts):
        raise BadInput(
            f"{shared} of the {len(test.work.prompts)} problems are calibration problems, too: keep them apart"
        )


@contextlib.contextmanager
def _models(config: CompareConfig, target: Target, work: Workload) -> Iterator[tuple[VerifyEngine, Drafter]]:
    leave_a_core(config.threads)
    run = RunConfig(max_tokens=config.max_tokens, concurrency=config.concurrency, threads=config.threads)
    with contextlib.closing(drafter_of(run, work)) as drafter:
        engine = load_engine(config.engine, target.path, dtype=config.dtype, vocab_size=target.vocab_size)
        with contextlib.closing(engine):
            yield engine, drafter


@dataclass(frozen=True)
class CompareBench:
    """The pair and the problems of a split."""

    config: CompareConfig
    target: Target
    split: ProblemSplit
    engine: VerifyEngine
    drafter: Drafter

    def block(self, settings: Sequence[HeadSetting], start: int) -> ProblemBlock:
        """Decode the problems of one block under every setting and θ, with one memory of passes and drafts."""
        config, engine, drafter = self.config, MemoEngine(self.engine, hidden=True), self._drafts()
        prompts = self.split.work.prompts[start : start + BLOCK]

        def setup(judge: Judge, source: Drafter, channel: int, threshold: float) -> JudgedSetup:
            csi = config.channels[channel].csi
            return JudgedSetup(source, self._task, config.window, judge, csi, threshold)

        found = {STRICT: self._run(engine, prompts, setup(StrictJudge(), drafter, 0, 0.0))}
        for one in settings:
            source = StatesAfter(drafter) if one.head.info.states == "after" else drafter
            for threshold in config.thresholds:
                judged = setup(HeadJudge(one.head), source, one.channel, threshold)
                found[one.key(threshold)] = self._run(engine, prompts, judged)
        score, agreement = answer_scorer(config.scorer)
        wanted = found[STRICT][0] if agreement else [expected(prompt.example, score) for prompt in prompts]
        return ProblemBlock({
            key: ([one is not None and one == want for one, want in zip(answers, wanted, strict=True)], tokens, rounds)
            for key, (answers, tokens, rounds) in found.items()
        })  # fmt: skip

    def _drafts(self) -> MemoDrafter:
        return MemoDrafter(self.drafter, depends_on_passes(self.split.work.drafter))

    @property
    def _task(self) -> AnswerTask:
        assert self.split.work.prompter is not None
        text, (score, _) = self.split.work.prompter.text, answer_scorer(self.config.scorer)
        return AnswerTask(Completer(self.target.end_ids), self.config.max_tokens, text, score)

    def _run(
        self, engine: MemoEngine, prompts: Sequence[Prompt], setup: JudgedSetup
    ) -> tuple[list[Hashable], list[int], list[int]]:
        """Each answer, its tokens and its rounds."""
        lockstep, task = Lockstep(engine, self.config.concurrency), setup.task
        found = dict(lockstep.run(decode_judged(setup, i, prompt.ids) for i, prompt in enumerate(prompts)))
        outputs = [found[i] for i in range(len(prompts))]
        answers = [task.scorer(task.text(o.token_ids)) for o in outputs]
        return answers, [len(o.token_ids) for o in outputs], [o.rounds for o in outputs]


def _tradeoff(config: CompareConfig, one: HeadSetting, blocks: Sequence[ProblemBlock]) -> Tradeoff:
    """Accuracy lost and AAL of a setting over all blocks of a split, from θ = 0."""
    keys = [STRICT, *(one.key(threshold) for threshold in config.thresholds)]
    right, tokens, rounds = (
        np.array([[value for block in blocks for value in block.outcomes[key][column]] for key in keys], np.float64)
        for column in range(3)
    )
    return Tradeoff(np.array([0.0, *config.thresholds]), right[0] - right, np.ones(right.shape[1]), tokens, rounds)


def _document(
    config: CompareConfig, settings: Sequence[HeadSetting], found: dict[str, list[ProblemBlock]]
) -> dict[str, Any]:
    """`rows`: AAL at equal loss on the test problems. `chosen`: θ chosen on the calibration problems, tested."""
    rows: list[dict[str, Any]] = []
    chosen: list[dict[str, Any]] = []
    for index, channel in enumerate(config.channels):
        link = msgspec.structs.asdict(channel)
        mine = [one for one in settings if one.channel == index or not one.head.info.features]
        for points in config.losses:
            tested = {
                name: [_tradeoff(config, one, found[TEST]) for one in mine if one.name == name] for name in config.heads
            }
            rows += [link | row for row in at_equal_loss(tested, points, config.seed)]
            for one in mine:
                calibration, test = (_tradeoff(config, one, found[name]) for name in (CALIBRATION, TEST))
                at = calibration.threshold_at(points)
                lost = Bootstrap({"lost": 100.0 * test.lost[at]}).mean("lost")
                chosen.append(link | {
                    "head": one.name, "directory": one.directory, "points": points,
                    "threshold": float(test.thresholds[at]),
                    "lost_calibration": _at(calibration.losses, calibration, at),
                    "lost": lost.value, "lost_low": lost.low, "lost_high": lost.high,
                    "aal": _at(test.gains, test, at), "aal_strict": _at(test.gains, test, 0),
                })  # fmt: skip
    return {"rows": rows, "chosen": chosen}


def _at(of: Callable[[Reals], Reals], curve: Tradeoff, index: int) -> float:
    return float(of(curve.whole)[0, index])
