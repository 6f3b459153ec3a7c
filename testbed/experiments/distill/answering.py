"""Where a target's answers come from: passes of an engine, or transformers with many prompts at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.bs.engines.registry import load_engine
from testbed.experiments.distill.answers import AnswerTaking, TargetAnswer
from testbed.experiments.distill.config import DistillConfig
from testbed.experiments.distill.prepare import Distillation
from testbed.experiments.lockstep.decoding import Decoding, Lockstep

if TYPE_CHECKING:
    from testbed.models.distill.generate import BatchGenerator

NOTHING_DRAFTED = np.empty(0, np.int32)
PASSES = 24
"""Passes of the target that are timed, one token each."""


class EngineAnswers:
    """Answers by passes of the engine, which is loaded when it is needed first."""

    def __init__(self, config: DistillConfig, work: Distillation, say: Callable[[str], None]) -> None:
        self._config, self._work, self._say = config, work, say
        self._engine: VerifyEngine | None = None

    def __call__(
        self, prompts: Sequence[Sequence[int]], taking: AnswerTaking, told: Callable[[int], None]
    ) -> list[TargetAnswer]:
        """See `through_engine`."""
        return through_engine(self._loaded(), prompts, taking, told)

    def pass_ms(self, answer: TargetAnswer) -> float:
        """Median time of a pass that decodes one token of one sequence."""
        engine, times_s, text = self._loaded(), [], answer.prompt
        for token in answer.output[:PASSES]:
            start_s = time.perf_counter()
            engine.verify([VerifyRequest("timed", text, NOTHING_DRAFTED)])
            times_s.append(time.perf_counter() - start_s)
            text = np.append(text, token)
        engine.release("timed")
        return 1e3 * float(np.median(times_s[1:] or times_s))  # the first one reads the prompt

    def close(self) -> None:
        """Free the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _loaded(self) -> VerifyEngine:
        if self._engine is None:
            target = self._work.target
            self._say(f"loading {target.path} on {self._config.engine}")
            self._engine = load_engine(
                self._config.engine, target.path, dtype=self._config.dtype, vocab_size=target.vocab_size,
                max_model_len=self._work.positions(self._config),
            )  # fmt: skip
        return self._engine


class TransformersAnswers(EngineAnswers):
    """Answers of transformers without the engine, whose passes compute one sequence after the other."""

    _generator: BatchGenerator | None = None

    def __call__(
        self, prompts: Sequence[Sequence[int]], taking: AnswerTaking, told: Callable[[int], None]
    ) -> list[TargetAnswer]:
        """See `EngineAnswers`."""
        from testbed.models.distill.generate import BatchGenerator, Generation

        if self._generator is None:
            self._say(f"loading {self._work.target.path} in transformers")
            self._generator = BatchGenerator(self._work.model, self._config.dtype, self._work.target.vocab_size)
        found: list[TargetAnswer] = []
        for start in range(0, len(prompts), taking.lanes):
            group = prompts[start : start + taking.lanes]
            how = Generation(taking.max_tokens, taking.ends, taking.top, taking.temperature, taking.seed + start)
            answers = self._generator.answers(group, how)
            found += [TargetAnswer(np.array(p, np.int32), *one) for p, one in zip(group, answers, strict=True)]
            told(len(found))
        return found

    def pass_ms(self, answer: TargetAnswer) -> float:
        """See `EngineAnswers`."""
        self._generator = None  # the engine has weights of its own
        return super().pass_ms(answer)


def answering_of(config: DistillConfig, work: Distillation, say: Callable[[str], None]) -> EngineAnswers:
    """How the target answers with this configuration's engine."""
    kind = TransformersAnswers if config.engine == "transformers" else EngineAnswers
    return kind(config, work, say)


def through_engine(
    engine: VerifyEngine, prompts: Sequence[Sequence[int]], taking: AnswerTaking, told: Callable[[int], None]
) -> list[TargetAnswer]:
    """Answers by passes of an engine: see `Answering`.

    Raises:
        EngineError: the engine failed.
    """
    found: dict[int, TargetAnswer] = {}
    decodings = (_answer(i, prompt, taking) for i, prompt in enumerate(prompts))
    for number, one in Lockstep(engine, taking.lanes).run(decodings):
        found[number] = one
        told(len(found))
    return [found[i] for i in range(len(prompts))]


def _answer(number: int, prompt: Sequence[int], taking: AnswerTaking) -> Decoding[TargetAnswer]:
    """Decode one answer, a token a pass."""
    text = np.array(prompt, np.int32)
    random = np.random.default_rng([taking.seed + number, 0])
    top, logprobs = list[NDArray[np.int64]](), list[NDArray[np.float32]]()
    while len(top) < taking.max_tokens and not (top and int(text[-1]) in taking.ends):
        result = yield VerifyRequest(str(number), text, NOTHING_DRAFTED, logprobs=True)
        assert result.logprobs is not None
        row = result.logprobs[0]
        best = np.argpartition(row, -min(taking.top, len(row)))[-taking.top :]
        best = best[np.argsort(-row[best], kind="stable")]
        top.append(best)
        logprobs.append(row[best])
        token = int(result.argmax[0])
        if taking.temperature:
            token = int(np.argmax(row / taking.temperature + random.gumbel(size=len(row))))
        text = np.append(text, np.int32(token))
    return TargetAnswer(
        text[: len(prompt)], text[len(prompt) :], np.array(top, np.int32), np.array(logprobs, np.float16)
    )
