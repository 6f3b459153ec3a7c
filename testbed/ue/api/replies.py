"""Response documents of the OpenAI API: complete ones, and the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from typing import Any

from testbed.ue.api.backend import Ended


class Reply:
    """Response to a completion request; `ChatReply` is that to a chat. Texts are those since the last chunk."""

    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, prompt_tokens: int) -> None:
        self._model, self._prompt_tokens = model, prompt_tokens
        self._id, self._created = f"{self.prefix}-{secrets.token_hex(12)}", int(time.time())

    def whole(self, text: str, ended: Ended) -> dict[str, Any]:
        """The complete response."""
        choice = {"index": 0, **self._text(text), "logprobs": None, "finish_reason": ended.reason}
        return {**self._head(self.whole_object, [choice]), "usage": self._usage(ended), "speculation": _cost(ended)}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first text."""
        return []

    def chunk(self, text: str) -> dict[str, Any]:
        """A chunk with text."""
        return self._chunk(self._delta(text), None)

    def last(self, ended: Ended) -> dict[str, Any]:
        """The chunk with the finish reason."""
        return {**self._chunk(self._delta(""), ended.reason), "speculation": _cost(ended)}

    def usage(self, ended: Ended) -> dict[str, Any]:
        """The final chunk with the usage, if requested."""
        return {**self._head(self.chunk_object, []), "usage": self._usage(ended)}

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return self._head(self.chunk_object, [{"index": 0, **delta, "logprobs": None, "finish_reason": reason}])

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}

    def _text(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _usage(self, ended: Ended) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": ended.tokens,
            "total_tokens": self._prompt_tokens + ended.tokens,
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


def _cost(ended: Ended) -> dict[str, Any]:
    """Extension of OpenAI's usage: protocol, rounds and tokens of the output."""
    return {name: getattr(ended, name) for name in ("protocol", "rounds", "drafted", "accepted")}
