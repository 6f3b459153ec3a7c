"""Speculative decoding of one prompt that records every mismatch as an episode (WISV Section V-B, stage 1)."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.decision_head.episodes import CRITICAL, HARMLESS, UNPARSED, Mismatches
from testbed.experiments.lockstep.answers import Answers, AnswerTask
from testbed.experiments.lockstep.decoding import Decoding, draft_window
from testbed.ue.drafters.base import Drafter, DraftToken

POLICIES = ("oracle", "explore", "strict")
"""Rules by which mismatches are kept; they determine the prefixes of later mismatches. In use, a head sees prefixes
that contain kept mismatches, and several mismatches in one window.

oracle: AutoJudge's procedure. Each mismatch is labelled at once, kept if harmless and rejected if critical or without a
    label: the prefixes are those of a perfect judge.
explore: kept at random. Prefixes contain critical mismatches too, as with a permissive head; a label is then relative
    to the output that the prefix leads to.
strict: rejected. Prefixes are the target's own output.
"""


@dataclass(frozen=True)
class EpisodeSetup:
    """Models and settings shared by all episodes of a collection."""

    drafter: Drafter
    task: AnswerTask
    window: int
    policy: str
    explore: float
    seed: int

    @property
    def ends(self) -> Collection[int]:
        """End-of-output token ids."""
        return self.task.completer.ends


@dataclass
class Episode:
    """Mismatches met while decoding one prompt, one row each; the columns are those of `Mismatches`."""

    prompt: int
    prompt_len: int
    position: list[int] = field(default_factory=list)
    draft_id: list[int] = field(default_factory=list)
    target_id: list[int] = field(default_factory=list)
    drafter_hidden: list[NDArray[np.float16]] = field(default_factory=list)
    target_hidden: list[NDArray[np.float32]] = field(default_factory=list)
    drafter_after: list[NDArray[np.float16]] = field(default_factory=list)
    target_after: list[NDArray[np.float32]] = field(default_factory=list)
    prefix: list[NDArray[np.int32]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    """Filled by policy `oracle` only; values as in `decision_head.episodes`."""
    completions: int = 0

    def __len__(self) -> int:
        return len(self.position)

    def meet(
        self, prefix: NDArray[np.int32], token: DraftToken, after: DraftToken, result: VerifyResult, row: int
    ) -> None:
        """Append the mismatch at `row` of a verified window, after `prefix`; `after` is drafted behind `token`."""
        assert result.hidden is not None
        self.position.append(len(prefix) - self.prompt_len)
        self.draft_id.append(token.id)
        self.target_id.append(int(result.argmax[row]))
        self.drafter_hidden.append(token.hidden)
        self.target_hidden.append(result.hidden[row].copy())
        self.drafter_after.append(after.hidden)
        self.target_after.append(result.hidden[row + 1].copy())
        self.prefix.append(prefix)


def decode_episode(setup: EpisodeSetup, number: int, prompt: Sequence[int]) -> Decoding[Episode]:
    """Decode prompt `number` round by round, as a UE and a BS would, recording in every window the mismatches up to and
    including the rejected one.
    """
    episode = Episode(number, len(prompt))
    session = f"prompt-{number}"
    answers = Answers(setup.task, session, len(prompt))
    text = np.array(prompt, np.int32)
    sequence = setup.drafter.open(prompt)
    try:
        while (room := len(prompt) + setup.task.max_tokens - len(text)) > 0:
            tokens = draft_window(sequence, min(setup.window, room), setup.ends)
            ids = np.array([token.id for token in tokens], np.int32)
            result = yield VerifyRequest(session, text, ids, hidden=True)
            if ids[-1] != result.argmax[len(ids) - 1]:
                tokens = [*tokens, sequence.draft_one()]  # for its state, which has read the window's last token
            accepted = yield from _judge(setup, episode, answers, text, tokens, ids, result)
            added = [*ids[:accepted].tolist(), int(result.argmax[accepted])][:room]
            ends = [place for place, token in enumerate(added) if token in setup.ends]
            text = np.append(text, np.array(added[: ends[0] + 1] if ends else added, np.int32))
            if ends or len(added) == room:
                break
            sequence.commit(accepted, added[-1])
    finally:
        sequence.close()
    episode.completions = answers.completions
    return episode


def _judge(
    setup: EpisodeSetup,
    episode: Episode,
    answers: Answers,
    text: NDArray[np.int32],
    tokens: Sequence[DraftToken],
    ids: NDArray[np.int32],
    result: VerifyResult,
) -> Decoding[int]:
    """Number of drafted tokens `ids` [K] accepted; records the mismatches up to there. `tokens` holds one more where
    the last one is a mismatch.
    """
    rows: list[int] = np.flatnonzero(ids != result.argmax[:-1]).tolist()
    for row, following in zip(rows, [*rows[1:], len(ids)], strict=False):
        prefix = np.concatenate([text, ids[:row]])
        episode.meet(prefix, tokens[row], tokens[row + 1], result, row)
        if setup.policy == "oracle":
            begun = result.argmax[row + 1 : following + 1].tolist()  # equals the draft up to the next mismatch
            critical = yield from answers.critical(prefix.tolist(), int(ids[row]), int(result.argmax[row]), begun)
            episode.labels.append(label_of(critical))
            kept = critical is False
        else:
            kept = _chance(setup, episode) < (setup.explore if setup.policy == "explore" else 0.0)
        if not kept:
            return row
    return len(ids)


def label_of(critical: bool | None) -> int:
    """The label of a mismatch; None: there was no answer to compare."""
    return UNPARSED if critical is None else CRITICAL if critical else HARMLESS


def _chance(setup: EpisodeSetup, episode: Episode) -> float:
    """A random number in [0, 1), determined by the seed, the prompt and the mismatch's index in its episode."""
    return random.Random(f"explore/{setup.seed}/{episode.prompt}/{len(episode)}").random()


def chunk_of(episodes: Sequence[Episode], drafter_hidden: int, target_hidden: int) -> Mismatches:
    """Concatenate episodes into arrays; there may be no mismatches at all.

    Args:
        drafter_hidden: the drafter's hidden size d_d.
        target_hidden: the target's hidden size d_t.
    """
    prefixes = [prefix for episode in episodes for prefix in episode.prefix]

    def column(name: str) -> list[int]:
        return [value for episode in episodes for value in getattr(episode, name)]

    def stacked(name: str, width: int, dtype: type[np.floating]) -> NDArray[np.floating]:
        rows = [row for episode in episodes for row in getattr(episode, name)]
        return np.stack(rows).astype(dtype) if rows else np.empty((0, width), dtype)

    return Mismatches(
        prompt=np.repeat([e.prompt for e in episodes], [len(e) for e in episodes]).astype(np.int32),
        order=np.concatenate([np.arange(len(e), dtype=np.int32) for e in episodes]),
        position=np.array(column("position"), np.int32),
        draft_id=np.array(column("draft_id"), np.int32),
        target_id=np.array(column("target_id"), np.int32),
        drafter_hidden=stacked("drafter_hidden", drafter_hidden, np.float16),
        target_hidden=stacked("target_hidden", target_hidden, np.float32),
        drafter_after=stacked("drafter_after", drafter_hidden, np.float16),
        target_after=stacked("target_after", target_hidden, np.float32),
        prefix_start=np.cumsum([0, *map(len, prefixes)], dtype=np.int64),
        prefix_ids=np.concatenate([np.empty(0, np.int32), *prefixes]),
        prompt_len=np.repeat([e.prompt_len for e in episodes], [len(e) for e in episodes]).astype(np.int32),
    )
