"""Response documents of the OpenAI API: complete ones, and the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from testbed.ue.api.backend import Ended


class Reply:
    """Response to a completion request; `ChatReply` is that to a chat. Texts are those since the last chunk, and
    `index` is the number of the prompt that they belong to.
    """

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, prompt_tokens: int) -> None:
        self._model, self._prompt_tokens = model, prompt_tokens
        self._id, self._created = f"{self.prefix}-{secrets.token_hex(12)}", int(time.time())

    def whole(self, texts: Sequence[str], ends: Sequence[Ended]) -> dict[str, Any]:
        """The complete response, with one choice for each prompt."""
        choices = [
            {"index": i, **self._text(text), "logprobs": None, "finish_reason": ended.reason}
            for i, (text, ended) in enumerate(zip(texts, ends, strict=True))
        ]
        return {**self._head(self.whole_object, choices), "usage": self._usage(ends), "speculation": _cost(ends)}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first text."""
        return []

    def chunk(self, text: str, index: int = 0) -> dict[str, Any]:
        """A chunk with text."""
        return self._chunk(self._delta(text), None, index)

    def last(self, ended: Ended, index: int = 0) -> dict[str, Any]:
        """The chunk with the finish reason."""
        return {**self._chunk(self._delta(""), ended.reason, index), "speculation": _cost([ended])}

    def usage(self, ends: Sequence[Ended]) -> dict[str, Any]:
        """The final chunk with the usage, if requested."""
        return {**self._head(self.chunk_object, []), "usage": self._usage(ends)}

    def _chunk(self, delta: dict[str, Any], reason: str | None, index: int = 0) -> dict[str, Any]:
        return self._head(self.chunk_object, [{"index": index, **delta, "logprobs": None, "finish_reason": reason}])

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}

    def _text(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _usage(self, ends: Sequence[Ended]) -> dict[str, int]:
        tokens = sum(ended.tokens for ended in ends)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self._prompt_tokens + tokens,
        }


class ChatReply(Reply):
    """Response to a chat request."""

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        """A chunk with the assistant's role."""
        return [self._chunk({"delta": {"role": "assistant", "content": ""}}, None)]

    def _text(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}


def _cost(ends: Sequence[Ended]) -> dict[str, Any]:
    """Extension of OpenAI's usage: protocol, rounds and tokens of all outputs."""
    sums = {name: sum(getattr(ended, name) for ended in ends) for name in ("rounds", "drafted", "accepted")}
    return {"protocol": ends[0].protocol, **sums}
