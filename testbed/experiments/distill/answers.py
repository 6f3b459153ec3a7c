"""The target's own answers, with its most likely ids at every token: what a drafter is distilled on.

They are generated a chunk of prompts at a time; each chunk is a file, so that an interrupted generation goes on with
the first missing one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.files import whole_file
from testbed.unpacked.arrays import npz_arrays

CHUNK_LANES = 4
"""Prompts of a chunk for each that is answered at a time: idle lanes at a chunk's end are few then."""
Progress = Callable[[int, int, str], None]


class TargetAnswer(NamedTuple):
    """A prompt and the target's answer."""

    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    """[m] the end id included, if it came."""
    top: NDArray[np.int32]
    """[m, k] ids that the target found most likely, the most likely first."""
    logprobs: NDArray[np.float16]
    """[m, k] their natural log-probabilities."""


class AnswerTaking(NamedTuple):
    """How answers are taken.

    Attributes:
        max_tokens: length limit of an answer.
        ends: ids that end it.
        top: number k of ids kept at each token.
        lanes: prompts answered at a time.
        temperature: 0: greedy answers; above: sampled ones.
        seed: seed of sampled answers.
    """

    max_tokens: int
    ends: Collection[int]
    top: int
    lanes: int
    temperature: float = 0.0
    seed: int = 0


Answering = Callable[[Sequence[Sequence[int]], AnswerTaking, Callable[[int], None]], list[TargetAnswer]]
"""Generates the answers to prompts, in their order, and tells how many have ended."""


def take_answers(
    prompts: Sequence[Sequence[int]],
    taking: AnswerTaking,
    answering: Answering,
    folder: Path,
    progress: Progress,
) -> tuple[list[TargetAnswer], float]:
    """Answers of all prompts in order, of which those in the folder's files are not generated again, and the seconds
    that their generation took. A greater number of prompts adds to the last file.

    Args:
        answering: called with the prompts of a chunk whose answers are missing.

    Raises:
        BadInput: a damaged file.
        EngineError: the engine failed; finished chunks are kept.
    """
    size = taking.lanes * CHUNK_LANES
    found: list[TargetAnswer] = []
    seconds = 0.0
    for chunk, start in enumerate(range(0, len(prompts), size)):
        path, group = folder / f"{chunk:05d}.npz", prompts[start : start + size]
        progress(start, len(prompts), "answers")
        read, took_s = _read(path) if path.exists() else ([], 0.0)
        if [one.prompt.tolist() for one in read] != [list(prompt) for prompt in group[: len(read)]]:
            raise BadInput(f"{path} has answers to other prompts; choose another --out")
        if missing := group[len(read) :]:
            first = start + len(read)
            start_s = time.perf_counter()
            read += answering(missing, taking._replace(seed=taking.seed + first), _later(progress, first, len(prompts)))
            took_s += time.perf_counter() - start_s
            _write(path, read, took_s)
        found += read
        seconds += took_s
    progress(len(prompts), len(prompts), "answers")
    return found, seconds


def _later(progress: Progress, start: int, total: int) -> Callable[[int], None]:
    """Progress within a chunk that begins with prompt `start`."""
    return lambda done: progress(start + done, total, "answers")


def _write(path: Path, answers: Sequence[TargetAnswer], seconds: float) -> None:
    joined = {name: np.concatenate([getattr(one, name) for one in answers]) for name in TargetAnswer._fields}
    lengths = {
        f"{name}_lengths": np.array([len(getattr(one, name)) for one in answers]) for name in ("prompt", "output")
    }
    with whole_file(path) as part, part.open("wb") as file:
        arrays: dict[str, Any] = {"seconds": np.array(seconds), **joined, **lengths}
        np.savez(file, **arrays)


def _read(path: Path) -> tuple[list[TargetAnswer], float]:
    arrays: dict[str, Any] = npz_arrays(path)
    try:
        ends = {name: np.cumsum(arrays[f"{name}_lengths"]) for name in ("prompt", "output")}
        parts = [
            np.split(arrays[name], ends["prompt" if name == "prompt" else "output"][:-1])
            for name in TargetAnswer._fields
        ]
        return [TargetAnswer(*fields) for fields in zip(*parts, strict=True)], float(arrays["seconds"])
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise BadInput(f"{path} is damaged ({exc}); remove it, and its answers are generated again") from exc
