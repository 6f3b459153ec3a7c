"""Recorded drafts in a cell: lengths, agreement and statistics are a pair's own, tokens are the synthetic target's.

At each position a drafted token is the target's where the recorded one is the recorded target's, so that UEs of any
pair share a base station that computes no model.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from testbed import synthetic
from testbed.assets import fingerprints
from testbed.assets.bundled_files import find
from testbed.errors import BadInput
from testbed.experiments.cell.config import UeGroup
from testbed.experiments.deployment.traffic_ue import LANGUAGE, MOST_POSITIONS, SYNTHETIC, VOCAB
from testbed.experiments.runs.prepare import predictor_directory
from testbed.ue.drafters.base import Choose, Drafter, DraftSequence, DraftToken
from testbed.ue.drafters.recorded import DraftRecording, Recorded, RecordedDrafter, load_recording
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.predictor import load_predictor
from testbed.ue.windows.registry import WINDOW_RULES, window_policy

Language = Callable[[list[int], bool], int]
"""The target's token after a prefix, or another one."""


def traffic_language(prefix: list[int], right: bool) -> int:
    """Tokens of the target in virtual time."""
    target = int(LANGUAGE[len(prefix)])
    return target if right else (target + 1) % VOCAB


def real_language(prefix: list[int], right: bool) -> int:
    """Tokens of the synthetic target in real time."""
    return (synthetic.next_token if right else synthetic.runner_up)(prefix, synthetic.VOCAB, 0)


def recording_of(group: UeGroup) -> DraftRecording | None:
    """The recorded drafts of a group; None: it has none.

    Raises:
        BadInput: no recording, or windows that it does not cover.
    """
    if group.drafts is None or group.traffic == "bytes":
        return None
    recording = load_recording(find("recorded drafts", group.drafts))
    longest = group.window if group.lookahead == 0 else 2 * group.window + 1
    if longest > recording.depth:
        raise BadInput(
            f"group {group.name}: {group.drafts} has windows of {recording.depth} tokens at most, not {longest}"
        )
    return recording


class RecordedWork:
    """Requests of one UE: prompts of a recording, drawn at random and answered in order.

    Args:
        drafts: whether the UE drafts after them.
    """

    def __init__(self, recording: DraftRecording, drafts: bool) -> None:
        self.recording, self._drafts = recording, drafts
        self._asked = deque[Recorded]()

    def next(self, dice: random.Random) -> tuple[int, int]:
        """Tokens of the next prompt and its response."""
        one = dice.choice(self.recording.prompts)
        if self._drafts:
            self._asked.append(one)
        return len(one.prompt), len(one.output)

    def begun(self) -> Recorded:
        """The prompt whose drafts begin."""
        return self._asked.popleft()


class ReplayingDrafter(Drafter):
    """Drafts of a UE as recorded; its tokens are those of the synthetic target, in virtual or in real time.

    Args:
        source: drafts after a recorded prompt.
    """

    def __init__(
        self, work: RecordedWork, source: Drafter, language: Language, vocab_size: int, hidden_size: int, name: str
    ) -> None:
        self.vocab_size, self.hidden_size, self.context, self.fingerprint = (
            vocab_size,
            hidden_size,
            MOST_POSITIONS,
            name,
        )
        self._work, self._source, self._language = work, source, language
        self._ends = frozenset(work.recording.end_ids)

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> ReplayingSequence:
        """See `Drafter.open`."""
        if distributions or choose is not None:
            raise BadInput("recorded drafts have no distributions to draw from; use greedy, fh or sh")
        one = self._work.begun()
        hidden = np.zeros(self.hidden_size, np.float16)
        return ReplayingSequence(one, self._source.open(one.prompt), list(prompt), self._language, self._ends, hidden)

    def close(self) -> None:
        """Nothing to free."""


class ReplayingSequence:
    """Implements `IndexedSequence`: a window ends where the recorded drafter drafted an end id."""

    def __init__(
        self, known: Recorded, source: DraftSequence, ids: list[int], language: Language, ends: frozenset[int],
        hidden: np.ndarray,
    ) -> None:  # fmt: skip
        self._known, self._source, self._language, self._ends = known, source, language, ends
        self._ids, self._hidden = ids, hidden
        self._committed, self._prompt_len = len(ids), len(ids)
        self._agrees, self._ended = True, False
        self._passes = (len(ids), 0)

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""
        return self._committed

    def ready(self) -> bool:
        """See `IndexedSequence.ready`."""
        return not self._ended

    def passes(self) -> tuple[int, int]:
        """See `IndexedSequence.passes`."""
        found, self._passes = self._passes, (0, 0)
        return found

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`."""
        one, place = self._source.draft_one(), len(self._ids) - self._prompt_len
        output = self._known.output
        self._agrees = self._agrees and place < len(output) and one.id == output[place]
        self._ended = one.id in self._ends
        token = self._language(self._ids, self._agrees)
        self._ids.append(token)
        self._passes = self._passes[0], self._passes[1] + 1
        return DraftToken(token, one.top1, one.entropy, one.margin, one.logit_std, self._hidden)

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`."""
        place = self._committed + accepted - self._prompt_len
        if place < len(self._known.output):
            self._source.commit(accepted, self._known.output[place])
        del self._ids[self._committed + accepted :]
        self._ids.append(token)
        self._committed, self._agrees, self._ended = len(self._ids), True, False

    def close(self) -> None:
        """See `DraftSequence.close`."""
        self._source.close()


def virtual_replay(work: RecordedWork) -> ReplayingDrafter:
    """Recorded drafts for virtual time."""
    return ReplayingDrafter(work, RecordedDrafter(work.recording), traffic_language, VOCAB, 1, SYNTHETIC)


def real_replay(work: RecordedWork, hidden_size: int) -> ReplayingDrafter:
    """Recorded drafts for a synthetic target in real time."""
    source = RecordedDrafter(work.recording)
    return ReplayingDrafter(work, source, real_language, synthetic.VOCAB, hidden_size, fingerprints.SYNTHETIC)


def trained_policy(group: UeGroup, drafter: str) -> WindowPolicy:
    """The group's window policy, with the bundled predictor where it needs one.

    Args:
        drafter: fingerprint of its weights.

    Raises:
        BadInput: the predictor is of another drafter.
    """
    rule = WINDOW_RULES[group.window_rule]
    predictor = load_predictor(predictor_directory(None)) if rule.predictor else None
    if predictor is not None and predictor.info.drafter_fingerprint != drafter:
        whose = "the drafter of `models`" if group.drafts is None else f"the drafter of {group.drafts}"
        raise BadInput(f"group {group.name}: the bundled predictor is not of {whose}")
    return window_policy(group.window_rule, group.window, predictor)
