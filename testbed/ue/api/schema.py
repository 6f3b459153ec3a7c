"""Request documents of the OpenAI API: parsing, validation, conversion to `OutputRequest`; and API errors."""

from __future__ import annotations

import reprlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from testbed.errors import BadInput
from testbed.protocols.messages import Open
from testbed.protocols.ranges import RANGES
from testbed.protocols.sampling import Sampling, request_seed
from testbed.ue.api.backend import OutputRequest
from testbed.ue.prompts import Prompter, Turn

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "top_logprobs": (0,),
    "logprobs": (False,),
    "prompt_logprobs": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": ([],),
    "reasoning_effort": ("none",),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
"""Fields that are not supported, and the values (besides null) that are accepted because they have no effect."""
MOST_MESSAGES = 4096
"""Largest number of messages of a conversation."""
MOST_PROMPTS = 64
"""Largest number of prompts in one request."""
MOST_STOPS, MOST_STOP_CHARACTERS = 4, 256
"""Largest number of stop strings, as in OpenAI's API, and of characters of each."""
RANGE = RANGES[Open]
"""Ranges of numbers that a BS takes."""
CHARACTERS_PER_TOKEN = 32
"""Least number of characters that a token may stand for, where the vocabulary's longest token is shorter: spaces and
unknown words need no token of their length."""
NO_LOGPROBS = "logprobs are not available: the BS returns accepted tokens without their probabilities; leave it out"


T = TypeVar("T")
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list whose validation ends at the first invalid entry."""


class ApiError(Exception):
    """An error response in OpenAI's format."""

    def __init__(
        self, status: int, message: str, *, kind: str = "invalid_request_error", param: str | None = None,
        code: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class ErrorBody(BaseModel):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The document of an error response."""

    error: ErrorBody


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool | None = None


class ContentPart(BaseModel):
    """A part of a message's content."""

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Items[ContentPart] | None = None
    tool_calls: list[Any] | None = None

    def turn(self) -> Turn:
        """The message as a turn of a prompt.

        Raises:
            ApiError: content other than text.
        """
        if self.tool_calls:
            raise ApiError(400, "tool calls are not supported; leave them out", param="messages")
        parts = self.content if isinstance(self.content, list) else [ContentPart(type="text", text=self.content or "")]
        other = next((part.type for part in parts if part.type != "text"), None)
        if other:
            raise ApiError(400, f"content of type {other!r} is not supported; send text", param="messages")
        role = "system" if self.role == "developer" else self.role
        return Turn(role, "".join(part.text for part in parts))


class ApiRequest(BaseModel):
    """Fields that both kinds of requests have. Other fields are ignored, or refused by `NEUTRAL`."""

    model_config = ConfigDict(extra="allow", strict=True)
    prompt_field: ClassVar[str]

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, le=RANGE["temperature"].most)
    top_p: float | None = None
    top_k: int | None = Field(None, ge=-1, le=int(RANGE["top_k"].most))
    """Not in OpenAI's API but in other servers'; 0 and -1: all tokens."""
    ignore_eos: bool | None = None
    """Not in OpenAI's API either: whether the output continues after an end token."""
    seed: int | None = None
    stop: str | Items[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def ids(self, prompter: Prompter, context: int) -> list[list[int]]:
        """Ids of each prompt, at most `context` if it is given as ids."""
        raise NotImplementedError

    def length(self) -> int | None:
        """The requested number of tokens; None: not given."""
        return self.max_tokens

    def wants_usage(self) -> bool:
        """Whether the stream shall end with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self, served: str) -> None:
        """Refuse a request that cannot be answered as asked.

        Raises:
            ApiError: another model, an unsupported field, or stop strings that are empty, long or many.
        """
        if self.model is not None and self.model != served:
            message = f"the model {reprlib.repr(self.model)} does not exist; this endpoint serves {served!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        for name, value in (self.model_extra or {}).items():
            if name in NEUTRAL and value is not None and not any(_same(value, known) for known in NEUTRAL[name]):
                wrong = (
                    NO_LOGPROBS
                    if "logprobs" in name
                    else f"{name} = {reprlib.repr(value)} is not supported; leave it out"
                )
                raise ApiError(400, wrong, param=name, code="unsupported_parameter")
        if len(self.stops()) > MOST_STOPS:
            raise ApiError(400, f"{len(self.stops())} stop strings: at most {MOST_STOPS} are taken", param="stop")
        if not all(0 < len(stop) <= MOST_STOP_CHARACTERS and _is_unicode(stop) for stop in self.stops()):
            wrong = (
                f"a stop string must be Unicode text, not empty and not longer than {MOST_STOP_CHARACTERS} characters"
            )
            raise ApiError(400, wrong, param="stop")

    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def orders(self, prompter: Prompter, limits: RequestLimits) -> list[OutputRequest]:
        """Convert to orders for the backend, one for each prompt.

        Raises:
            ApiError: a prompt without room for output, or a value out of range.
        """
        try:
            prompts = self.ids(prompter, limits.context)
            sampling = Sampling(
                limits.temperature if self.temperature is None else self.temperature,
                0 if self.top_k in (None, -1) else self.top_k,
                1.0 if self.top_p is None else self.top_p,
            )
        except BadInput as exc:
            raise ApiError(400, str(exc)) from exc
        return [self._order(i, ids, sampling, limits) for i, ids in enumerate(prompts)]

    def _order(self, number: int, ids: list[int], sampling: Sampling, limits: RequestLimits) -> OutputRequest:
        if not ids:
            raise ApiError(400, "the prompt is empty")
        room = limits.context - len(ids) - 1
        wanted = self.length() or max(1, min(limits.max_tokens, room))
        if wanted > room:
            size = f"a prompt of {len(ids)} tokens and {wanted} output tokens"
            raise _too_long(size, limits.context, "max_tokens" if room > 0 else self.prompt_field)
        seed = secrets.randbits(63) if self.seed is None else request_seed(self.seed, "endpoint", number)
        return OutputRequest(ids, wanted, sampling, seed, self.stops(), bool(self.ignore_eos))


class CompletionRequest(ApiRequest):
    """POST /v1/completions."""

    prompt_field = "prompt"
    prompt: str | Items[int] | Items[str] | Items[Items[int]]

    def ids(self, prompter: Prompter, context: int) -> list[list[int]]:
        """Ids of each prompt: as given, or those of its text with the special tokens that the tokenizer adds."""
        prompt = self.prompt
        if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int):
            return [self._ids_of(prompt, prompter, context)]
        if len(prompt) > MOST_PROMPTS:
            raise ApiError(
                400, f"{len(prompt)} prompts in one request: at most {MOST_PROMPTS} are taken", param="prompt"
            )
        return [self._ids_of(one, prompter, context) for one in prompt]

    @staticmethod
    def _ids_of(prompt: Any, prompter: Prompter, context: int) -> list[int]:
        if isinstance(prompt, str):
            _check_length(len(prompt), prompter, context, "prompt")
            return prompter.raw(prompt)
        if len(prompt) > context:
            raise _too_long(f"a prompt of {len(prompt)} tokens", context, "prompt")
        ids = np.array(prompt, dtype=object)  # of any size
        if not np.all((ids >= 0) & (ids < prompter.vocab_size)):
            raise ApiError(400, f"token ids must lie in 0..{prompter.vocab_size - 1}", param="prompt")
        return [int(i) for i in ids]


class ChatRequest(ApiRequest):
    """POST /v1/chat/completions."""

    prompt_field = "messages"
    messages: Annotated[Items[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: int | None = Field(None, ge=1)

    def ids(self, prompter: Prompter, context: int) -> list[list[int]]:
        """The conversation's ids, by the chat template or a plain format."""
        turns = [message.turn() for message in self.messages]
        _check_length(sum(len(turn.content) for turn in turns), prompter, context, "messages")
        return [prompter.conversation(turns)]

    def length(self) -> int | None:
        """The requested number of tokens: `max_completion_tokens`, or `max_tokens` from older clients."""
        return self.max_completion_tokens or self.max_tokens


@dataclass(frozen=True)
class RequestLimits:
    """Defaults for a request, and its limits.

    Attributes:
        context: number of positions for prompt, output and one more token together.
    """

    max_tokens: int
    temperature: float
    context: int


def _check_length(characters: int, prompter: Prompter, context: int, param: str) -> None:
    """Refuse text that cannot fit the context before it is tokenized."""
    if characters > context * max(prompter.longest_token, CHARACTERS_PER_TOKEN):
        raise _too_long(f"a prompt of {characters} characters", context, param)


def _too_long(size: str, context: int, param: str) -> ApiError:
    message = (
        f"{size} exceed the context of {context} tokens; shorten it, lower max_tokens, or start the endpoint with a "
        "larger --context"
    )
    return ApiError(400, message, param=param, code="context_length_exceeded")


def _is_unicode(text: str) -> bool:
    """Whether text is free of surrogates, which JSON can spell but UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _same(value: Any, known: Any) -> bool:
    return bool(value == known) and isinstance(value, bool) == isinstance(known, bool)
