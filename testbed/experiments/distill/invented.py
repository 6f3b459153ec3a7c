"""Prompts that a target invents: after the begin of a user's message in its chat template it writes such a message.

Xu et al., "Magpie: Alignment Data Synthesis from Scratch by Prompting Aligned LLMs with Nothing" (arXiv 2406.08464).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.errors import BadInput
from testbed.experiments.distill.answers import Answering, AnswerTaking, Progress, take_answers
from testbed.ue.prompts import Prompter

TEMPERATURE = 0.8
MOST_TOKENS = 96
"""Longest invented prompt; a longer one is dropped, since it would end in the middle."""
PROBES = ("Apple", "7", "why?")
"""Messages that have nothing in common, so that what their prompts share is the template."""


def invented(
    count: int, prompter: Prompter, taking: AnswerTaking, answering: Answering, folder: Path, progress: Progress
) -> list[list[int]]:
    """Ids of up to `count` different prompts that the target invents; a greater count adds to them.

    Args:
        taking: how answers to prompts are taken, with the ids that end them.

    Raises:
        BadInput: a prompt format that begins with the message, or a damaged file.
        EngineError: the engine failed; finished chunks are kept.
    """
    begin, end = _around(prompter)
    sampling = taking._replace(
        max_tokens=MOST_TOKENS, ends=frozenset({*taking.ends, end}), top=1, temperature=TEMPERATURE
    )
    written, _ = take_answers([begin] * count, sampling, answering, folder, progress)
    whole = (one.output[:-1].tolist() for one in written if int(one.output[-1]) in sampling.ends)
    texts = dict.fromkeys(prompter.text(ids).strip() for ids in whole)
    return [prompter.ids(text) for text in texts if text]


def _around(prompter: Prompter) -> tuple[Sequence[int], int]:
    """Ids of a prompt before the user's message, and the id that follows it."""
    prompts = [prompter.ids(text) for text in PROBES]
    shared = next(i for i, ids in enumerate(zip(*prompts, strict=False)) if len(set(ids)) > 1)
    behind = next(i for i, ids in enumerate(zip(*(p[::-1] for p in prompts), strict=False)) if len(set(ids)) > 1)
    if not shared or not behind:
        raise BadInput("invented prompts need a prompt format with text before and after the message; see --invented")
    return prompts[0][:shared], prompts[0][len(prompts[0]) - behind]
