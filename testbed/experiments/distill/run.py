"""`testbed models distill`: a drafter for a target, from its own answers.

The stages are answers, training, export and card. What is finished stays in the directory: answers by chunks of
prompts, the training by checkpoints. The same command goes on from there.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from testbed.bs.engines.registry import leave_a_core
from testbed.config import load
from testbed.errors import BadInput
from testbed.experiments.distill.answering import answering_of
from testbed.experiments.distill.answers import AnswerTaking, Progress, TargetAnswer, take_answers
from testbed.experiments.distill.card import DOCUMENT, write_card
from testbed.experiments.distill.config import DistillConfig
from testbed.experiments.distill.invented import invented
from testbed.experiments.distill.measure import measured
from testbed.experiments.distill.prepare import Distillation, prepared
from testbed.experiments.distill.vocabulary import LessonMaker, frequent_ids, write_tokenizer
from testbed.experiments.results.claims import CONFIG, claimed, kept
from testbed.files import json_object, make_folder, whole_file
from testbed.models.checkpoint import writing
from testbed.models.distill.lesson import Lesson
from testbed.process.cores import model_threads
from testbed.protocols.vocabulary import BESIDE_GGUF, FILE

ANSWERS, INVENTED, MORE_ANSWERS = "work/answers", "work/invented", "work/answers-invented"
CHECKPOINT, TARGET, IDS = "work/training.pt", "work/target.json", "work/ids.json"
MODEL, DRAFTER = "model", "drafter.gguf"
Say = Callable[[str], None]


def distill(config: DistillConfig, out: Path, say: Say, progress: Progress) -> dict[str, Any]:
    """Distill a drafter into a directory; returns the card's document.

    Raises:
        BadInput: unusable settings or models, or `out` holds another distillation.
        ModelError: the GGUF file computes something else than the trained weights.
        EngineError: the engine failed; finished answers are kept.
    """
    work = prepared(config)
    with claimed(config, out, "distillation", lambda before: _agree(config, before, out)):
        for name in (ANSWERS, INVENTED, MORE_ANSWERS):
            make_folder(out / name)
        leave_a_core(config.threads, work.target.weights_bytes)
        answers, facts = _answers(config, work, out, say, progress)
        held_out, train = answers[: config.held_out], answers[config.held_out :]
        ids = _tokenizer(config, work, train, out)
        maker = LessonMaker(work.model, None if ids is None else out, config.length)
        lessons = [one for one in map(maker.lesson, train) if len(one.places)]
        checks = [maker.lesson(one) for one in held_out]
        facts |= {"coverage": maker.coverage(train), "vocabulary": None if ids is None else len(ids)}
        facts |= _trained(config, work, ids, (lessons, checks), out, say, progress)
        facts |= _exported(config, checks, out, say)
        facts |= measured(config, work, held_out, out / DRAFTER, say, progress)
        return write_card(config, work, facts, out)


def begun(out: Path) -> DistillConfig:
    """The settings of a distillation that a directory holds.

    Raises:
        BadInput: it holds none.
    """
    if not (out / CONFIG).is_file():
        raise BadInput(f"{out} holds no distillation to go on with; leave --resume out")
    return load(DistillConfig, out / CONFIG)


def _agree(config: DistillConfig, before: DistillConfig, out: Path) -> None:
    """Refuse to go on with another distillation, or with more prompts where no step is left to train on them. Threads,
    device and steps may differ, and prompts be added.
    """
    same = {name: getattr(config, name) for name in ("threads", "device", "steps")}
    more = {name: max(getattr(before, name), getattr(config, name)) for name in ("limit", "invented")}
    if msgspec.structs.replace(before, **same, **more) != config:
        raise BadInput(
            f"{out} holds another distillation; choose another --out, or give --resume without other options"
        )
    grown = (before.limit, before.invented) != (config.limit, config.invented)
    if grown and (out / DOCUMENT).is_file() and config.steps <= (done := json_object(out / DOCUMENT).get("steps", 0)):
        raise BadInput(
            f"the training in {out} has ended after {done} steps; give more --steps to train on more prompts"
        )


def _answers(
    config: DistillConfig, work: Distillation, out: Path, say: Say, progress: Progress
) -> tuple[list[TargetAnswer], dict[str, Any]]:
    """The target's answers to all prompts, the held-out ones first and invented ones last, and how long they took."""
    taking = AnswerTaking(
        config.max_tokens, frozenset(work.target.end_ids), config.top, config.concurrency, seed=config.seed
    )
    with contextlib.closing(answering_of(config, work, say)) as source:
        answers, seconds = take_answers([*work.held_out, *work.prompts], taking, source, out / ANSWERS, progress)
        more: list[list[int]] = []
        if config.invented:
            more = invented(config.invented, work.prompter, taking, source, out / INVENTED, progress)
            more = [ids for ids in more if ids not in work.held_out]
            say(f"the target invented {len(more)} prompts")
            found, found_s = take_answers(more, taking, source, out / MORE_ANSWERS, progress)
            answers, seconds = [*answers, *found], seconds + found_s
        target_ms = kept(out / TARGET, float, lambda: source.pass_ms(answers[0]))
    tokens = sum(len(one.output) for one in answers)
    say(f"answers: {tokens} tokens of {len(answers)} prompts in {seconds:.0f} s, {tokens / seconds:.0f} tokens/s")
    return answers, {
        "invented": len(more), "answer_tokens": tokens, "answer_s": seconds, "engine_pass_ms": target_ms,
    }  # fmt: skip


def _tokenizer(
    config: DistillConfig, work: Distillation, answers: Sequence[TargetAnswer], out: Path
) -> tuple[int, ...] | None:
    """Write the drafter's tokenizer; returns the target's ids that it has, None: all."""
    if config.vocabulary is None:
        for name in BESIDE_GGUF:
            if (work.model / name).exists():
                with whole_file(out / name) as part:
                    shutil.copyfile(work.model / name, part)
        return None
    size, ends = config.vocabulary, work.target.end_ids
    ids = kept(
        out / IDS, tuple[int, ...], lambda: frequent_ids(answers, work.model, size, ends)
    )  # more answers change none
    write_tokenizer(work.model, ids, out)
    return ids


def _trained(
    config: DistillConfig,
    work: Distillation,
    ids: tuple[int, ...] | None,
    data: tuple[Sequence[Lesson], Sequence[Lesson]],
    out: Path,
    say: Say,
    progress: Progress,
) -> dict[str, Any]:
    """Train, and write the Hugging Face directory; returns facts about the training."""
    import torch

    from testbed.experiments.distill.training import train
    from testbed.models.distill.student import StudentShape, make_student

    if not data[0]:
        raise BadInput(f"no prompt leaves room for an answer in {config.length} tokens; raise --length")
    torch.set_num_threads(config.threads or model_threads(work.target.weights_bytes))
    student = make_student(work.model, StudentShape(work.layers, config.hidden, ids, config.seed))
    state = train(config, student, data, out / CHECKPOINT, say, progress)
    make_folder(out / MODEL)
    with writing(out / MODEL):
        state.model.cpu().save_pretrained(out / MODEL)
    shutil.copyfile(out / FILE, out / MODEL / FILE)
    return {
        "parameters": sum(one.numel() for one in state.model.parameters()),
        "hidden": int(state.model.config.hidden_size),
        "steps": state.step,
        "trained_tokens": state.tokens,
        "train_s": state.seconds,
        "looks": [one._asdict() for one in state.looks],
    }


def _exported(config: DistillConfig, checks: Sequence[Lesson], out: Path, say: Say) -> dict[str, Any]:
    """Write the GGUF file, once it is found to compute what the trained weights compute on held-out text."""
    from testbed.models.real.parity import export_and_prove

    text = max(checks, key=lambda one: len(one.ids)).ids.tolist()
    parity = export_and_prove(out / MODEL, out / DRAFTER, config.gguf, config.min_agreement, text)
    say(f"wrote {out / DRAFTER}: {parity}")
    return {"bytes": (out / DRAFTER).stat().st_size, "parity": msgspec.to_builtins(parity)}
