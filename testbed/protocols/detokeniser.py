"""Incremental detokenisation, in whole characters."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from testbed.protocols.vocabulary import decoded

TAIL = 8
"""Ids of the prompt decoded together with the first output ids, whose spaces depend on what precedes them."""
UNFINISHED = "\ufffd"
"""Replacement character, for bytes that are not, or not yet, a character."""


class Detokeniser:
    """Text of an output from one id after another, without special tokens.

    A character whose bytes are spread over several tokens is held until it is whole.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        """`prompt`: ids before the output."""
        self._tokenizer = tokenizer
        self._ids = list(prompt[-TAIL:])
        self._start, self._settled, self._due = 0, len(self._ids), 1
        """First id that is decoded together with the open ones, first open id, and number of open ids from which on
        they are decoded."""

    def push(self, token: int) -> str:
        """The text that this token settles; often empty.

        A long output whose characters are never whole is decoded less and less often, since each time takes as long as
        all of it.

        Raises:
            ModelError: the decoder of the tokenizer fails.
        """
        self._ids.append(token)
        open_ids = len(self._ids) - self._settled
        if open_ids < self._due:
            return ""
        text = self._open_text()
        if text.endswith(UNFINISHED):
            self._due = open_ids + 1 + open_ids // 8
            return ""
        self._start, self._settled, self._due = self._settled, len(self._ids), 1
        return text

    def flush(self) -> str:
        """The remaining text, with unfinished characters as replacement characters.

        Raises:
            ModelError: see `push`.
        """
        text = self._open_text()
        self._start, self._settled, self._due = self._settled, len(self._ids), 1
        return text

    def _open_text(self) -> str:
        """Text after the settled ids, decoded together with those before them."""
        before, whole = (
            decoded(self._tokenizer, ids) for ids in (self._ids[self._start : self._settled], self._ids[self._start :])
        )
        return whole[len(before) :]
