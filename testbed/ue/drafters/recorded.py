"""A drafter that replays what a real one drafted after every prefix of the target's own outputs.

Under the strict judge the committed prefix is always one of the target's own output, so that what a drafter says in any
window is known once it is known after every such prefix: its next token there, and, where that is not the target's, the
tokens that it would have gone on with. A replay costs nothing, so that many UEs fit on one machine;
`ue.pace.ConstantPace` gives it a device's pace.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from testbed.errors import BadInput, ModelError
from testbed.files import file_bytes, whole_file
from testbed.ue.drafters.base import Choose, DraftToken

Statistics = tuple[int, float, float, float, float]
"""Id, top-1 probability, entropy, margin, logit standard deviation of a drafted token."""


SCHEMA = 1
MOST_TOKENS = 60_000
"""Tokens of a prompt, its output and a window, at most."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafts after one prompt.

    Raises:
        BadInput: parts that do not fit together.
    """

    prompt: list[int]
    output: list[int]
    """The target's own output."""
    drafted: list[Statistics]
    """The drafter's next token after each prefix of the output; as many as the output has."""
    branches: dict[int, list[Statistics]]
    """Tokens that follow the drafter's own token, by the position in the output where it disagrees."""

    def __post_init__(self) -> None:
        if not self.prompt or not self.output or len(self.drafted) != len(self.output):
            raise BadInput("a recording has a prompt, an output, and one drafted token for each of the output's")
        disagreeing = {i for i, (d, t) in enumerate(zip(self.drafted, self.output, strict=True)) if d[0] != t}
        if not disagreeing <= set(self.branches):
            raise BadInput("a recording has a branch wherever the drafter disagrees with the target")

    @property
    def tokens(self) -> Iterator[Statistics]:
        """All drafted tokens."""
        return itertools.chain(self.drafted, *self.branches.values())


class DraftRecording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outputs and drafts of a pair for a set of prompts.

    Raises:
        BadInput: another schema, no prompts, too long ones, one with two outputs, branches that are too short, ids
            outside the vocabulary, or statistics that no distribution has.
    """

    schema: int = SCHEMA
    drafter: str
    """Fingerprint of the drafter's weights."""
    target: str
    tokenizer: str
    """Fingerprint of the tokenizer, sent to the BS."""
    vocab_size: int
    depth: int
    """Longest window that can be replayed."""
    end_ids: list[int]
    prompts: list[Recorded]

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise BadInput(f"schema {self.schema} is not {SCHEMA}: written by another version")
        if not self.prompts or self.depth < 1:
            raise BadInput("a recording has prompts, and windows of at least one token")
        for one in self.prompts:
            if len(one.prompt) + len(one.output) + self.depth > MOST_TOKENS:
                raise BadInput(f"a prompt, its output and a window have at most {MOST_TOKENS} tokens")
            ids = itertools.chain(one.prompt, one.output, (token[0] for token in one.tokens))
            if not all(0 <= token < self.vocab_size for token in ids):
                raise BadInput(f"an id lies outside the vocabulary of {self.vocab_size}")
            if not all(_possible(token) for token in one.tokens):
                raise BadInput("statistics of a drafted token are those of no distribution")
            if not all(self._long_enough(one, place) for place in one.branches):
                raise BadInput(f"a branch ends before the windows of {self.depth} tokens that the recording is for")
        outputs = {tuple(one.prompt): one.output for one in self.prompts}
        if any(outputs[tuple(one.prompt)] != one.output for one in self.prompts):
            raise BadInput("a prompt is there twice, with different outputs")

    def _long_enough(self, one: Recorded, place: int) -> bool:
        """Whether the longest window can be drafted over a branch, or the drafter ends on it."""
        branch = one.branches[place]
        ids = {token[0] for token in (*one.drafted[place : place + 1], *branch)}
        return not 0 <= place < len(one.drafted) or len(branch) >= self.depth - 1 or bool(ids & set(self.end_ids))

    def save(self, path: Path) -> None:
        """Write it as one file of MessagePack."""
        with whole_file(path) as part:
            part.write_bytes(msgspec.msgpack.encode(self))


def _possible(token: Statistics) -> bool:
    """Whether statistics are in the bounds of any distribution."""
    _, top1, entropy, margin, logit_std = token
    return 0 <= top1 <= 1.001 and 0 <= margin <= 1.001 and -0.001 <= entropy < 100 and 0 <= logit_std < 1e6


def load_recording(path: Path) -> DraftRecording:
    """Read a recording.

    Raises:
        BadInput: no such file, or not a recording.
    """
    try:
        return msgspec.msgpack.decode(file_bytes(path), type=DraftRecording)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadInput) as exc:
        raise BadInput(f"{path} is no recording of drafts: {exc}") from exc


class RecordedDrafter:
    """Implements `Drafter`; hidden states are zero, so that only the strict judge can be used."""

    def __init__(self, recording: DraftRecording, hidden_size: int = 1) -> None:
        self.vocab_size, self.hidden_size = recording.vocab_size, hidden_size
        self.context = 1 + max(len(one.prompt) + len(one.output) for one in recording.prompts) + recording.depth
        self.fingerprint = recording.drafter
        self._known = {tuple(one.prompt): one for one in recording.prompts}
        self._hidden = np.zeros(hidden_size, np.float16)

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> RecordedSequence:
        """See `Drafter.open`.

        Raises:
            BadInput: a prompt that was not recorded, or distributions, which were not.
        """
        if distributions or choose is not None:
            raise BadInput("recorded drafts have no distributions to draw from; use greedy, fh or sh")
        known = self._known.get(tuple(int(i) for i in prompt))
        if known is None:
            raise BadInput("a recording drafts only after prompts that are in it")
        return RecordedSequence(known, self._hidden)

    def close(self) -> None:
        """Nothing to free."""


class RecordedSequence:
    """Implements `DraftSequence`."""

    def __init__(self, known: Recorded, hidden: np.ndarray) -> None:
        self._known, self._hidden = known, hidden
        self._place = 0
        self._window: list[int] = []

    @property
    def length(self) -> int:
        """Number of committed tokens, the prompt included."""
        return len(self._known.prompt) + self._place

    def draft_one(self) -> DraftToken:
        """See `DraftSequence.draft_one`.

        Raises:
            ModelError: a longer window than was recorded, or beyond the output's end.
        """
        token_id, top1, entropy, margin, logit_std = self._next()
        self._window.append(token_id)
        return DraftToken(token_id, top1, entropy, margin, logit_std, self._hidden)

    def _next(self) -> Statistics:
        """The token after the committed prefix and the tokens drafted since."""
        output, window = self._known.output, self._window
        agreed = 0
        while (
            agreed < len(window)
            and self._place + agreed < len(output)
            and window[agreed] == output[self._place + agreed]
        ):
            agreed += 1
        place = self._place + agreed
        if agreed == len(window):
            if place < len(output):
                return self._known.drafted[place]
        elif place < len(output):
            branch, step = self._known.branches[place], len(window) - agreed - 1
            if step < len(branch):
                return branch[step]
        raise ModelError("the recording ends here: record longer windows")

    def commit(self, accepted: int, token: int) -> None:
        """See `DraftSequence.commit`.

        Raises:
            ValueError: more tokens than were drafted, or others than the target's own.
        """
        if not 0 <= accepted <= len(self._window):
            raise ValueError(f"{accepted} tokens accepted of {len(self._window)} drafted")
        added = [*self._window[:accepted], token]
        if added != self._known.output[self._place : self._place + len(added)]:
            raise ValueError("recorded drafts follow the target's own output, and this is another")
        self._place, self._window = self._place + len(added), []

    def close(self) -> None:
        """Nothing to free."""
