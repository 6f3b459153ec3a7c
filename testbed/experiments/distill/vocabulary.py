"""The drafter's own vocabulary: the most frequent ids of the target, in a tokenizer of their own.

The UE maps ids by equal tokens (`ue/drafters/mapped.py`), so that a tokenizer beside the GGUF file is the id map.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from testbed.errors import BadInput
from testbed.experiments.distill.answers import TargetAnswer
from testbed.files import json_object, whole_file
from testbed.models.distill.lesson import UNKNOWN, Lesson
from testbed.protocols.vocabulary import FILE, token_ids, tokenizer_file
from testbed.ue.drafters.mapped import IdMap

BYTE = "<0x"
"""Begin of the tokens that stand for single bytes in SentencePiece's vocabularies."""


def frequent_ids(answers: Iterable[TargetAnswer], model: Path, size: int, ends: Collection[int]) -> tuple[int, ...]:
    """The target's ids that a head of `size` rows is for, increasing: special tokens and single characters, with which
    any text can be read, then the ids that occur most often in prompts and answers, then the lowest ones.

    Raises:
        BadInput: more rows than the target has tokens, or fewer than have to be there.
        ModelError: no readable tokenizer.
    """
    tokens = token_ids(model)
    special = {int(one["id"]) for one in json_object(tokenizer_file(model)).get("added_tokens", ())}
    needed = {i for token, i in tokens.items() if len(token) == 1 or token.startswith(BYTE)} | special | set(ends)
    if not len(needed) <= size <= len(tokens):
        raise BadInput(f"vocabulary must lie in {len(needed)}..{len(tokens)} for this target, not {size}")
    counts = Counter(i for one in answers for ids in (one.prompt, one.output) for i in ids.tolist())
    known = set(tokens.values())
    wished = [i for i, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))] + sorted(known)
    order = dict.fromkeys([*sorted(needed), *(i for i in wished if i in known)])
    return tuple(sorted(list(order)[:size]))


def write_tokenizer(model: Path, ids: Sequence[int], out: Path) -> None:
    """Write the tokenizer of a target, restricted to these ids, which are counted from 0 in their order."""
    document = json_object(tokenizer_file(model))
    places = {number: place for place, number in enumerate(ids)}
    inner = document["model"]
    vocab = inner["vocab"]
    if isinstance(vocab, dict):
        inner["vocab"] = {token: places[number] for token, number in vocab.items() if number in places}
    else:
        inner["vocab"] = [vocab[number] for number in ids if number < len(vocab)]
    if "merges" in inner:
        inner["merges"] = [merge for merge in inner["merges"] if _is_within(merge, inner["vocab"])]
    document["added_tokens"] = [
        {**one, "id": places[one["id"]]} for one in document.get("added_tokens", ()) if one["id"] in places
    ]
    document |= {"post_processor": None, "truncation": None, "padding": None}  # they name ids of the target
    with whole_file(out / FILE) as part:
        part.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def _is_within(merge: Any, vocab: Collection[str]) -> bool:
    """Whether both parts of a merge and its result are tokens."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in vocab and right in vocab and left + right in vocab


class LessonMaker:
    """Turns answers into lessons in the student's ids.

    Args:
        model: the target's tokenizer.
        own: directory of the student's tokenizer; None: it has the target's ids.
        length: ids of a lesson, at most.
    """

    def __init__(self, model: Path, own: Path | None, length: int) -> None:
        self._length = length
        self._map = None if own is None else IdMap(token_ids(own), token_ids(model))
        size = 1 + max(token_ids(model).values())
        self._own = np.arange(size)
        if self._map is not None:
            self._own = np.full(size, UNKNOWN)
            self._own[self._map.target_ids] = self._map.own_ids

    def lesson(self, answer: TargetAnswer) -> Lesson:
        """What the UE's drafter reads of an answer, and what it should say; without places where the prompt is longer
        than a lesson.
        """
        text = [*answer.prompt.tolist(), *answer.output.tolist()]
        pieces = [[token] if self._map is None else self._map.pieces(token) for token in text]
        places = np.cumsum([len(one) for one in pieces])[len(answer.prompt) - 1 : -1] - 1
        ids = np.array([piece for one in pieces for piece in one], np.int64)[: self._length]
        kept = int((places < len(ids)).sum())
        return Lesson(
            ids,
            places[:kept],
            self.own(answer.output[:kept]),
            self.own(answer.top[:kept]),
            answer.logprobs[:kept].astype(np.float32),
        )

    def own(self, ids: Any) -> Any:
        """The student's ids of the target's, `UNKNOWN` where it has none."""
        return self._own[ids].astype(np.int64)

    def coverage(self, answers: Iterable[TargetAnswer]) -> float:
        """Share of the tokens of answers that the student can say."""
        said = np.concatenate([self.own(one.output) for one in answers])
        return float((said != UNKNOWN).mean())
