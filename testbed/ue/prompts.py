"""Prompt formatting and tokenization: plain templates, few-shot examples, chat templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from testbed.errors import BadInput, ModelError
from testbed.files import file_bytes, json_object
from testbed.protocols.vocabulary import decoded, fingerprint, read_tokenizer, tokenizer_directory
from testbed.ue.message_text import MessageText, encode

PLAIN = "Question: {question}\nAnswer:"


class Turn(NamedTuple):
    """One message of a conversation."""

    role: str
    """system, user or assistant."""
    content: str


class Prompter:
    """Formats and tokenizes questions for one model family.

    Args:
        model: directory with `tokenizer.json` and, for chat models, `tokenizer_config.json` or `chat_template.jinja`,
            or a GGUF file in such a directory.
        style: `plain`; `chat` (the tokenizer's template); `auto` (chat if there is a template); or a custom template
            that contains {question}.
        shots: few-shot examples (question, answer) that precede every question.

    Raises:
        BadInput: an unknown style, or chat without a template.
        ModelError: no tokenizer, or one that cannot be read.
    """

    def __init__(self, model: Path, style: str = "auto", shots: Sequence[tuple[str, str]] = ()) -> None:
        self.directory = directory = tokenizer_directory(model)
        self.tokenizer = read_tokenizer(directory)
        self.fingerprint = fingerprint(directory)
        self.shots = tuple(shots)
        self._settings = _settings(directory)
        self._chat = self._settings.get("chat_template")
        if style == "chat" and not self._chat:
            raise BadInput(f"{directory} has no chat template; use --prompt-format plain")
        if style not in ("auto", "chat", "plain") and "{question}" not in style:
            raise BadInput(f"unknown prompt format {style!r}; use auto, plain, chat, or a template with {{question}}")
        self._template = PLAIN if style in ("auto", "chat", "plain") else style
        self._messages = MessageText(self.tokenizer, _special_tokens(self._settings).get("unk_token"))
        self.is_chat = bool(self._chat) and style in ("auto", "chat")

    @property
    def vocab_size(self) -> int:
        """Largest id plus one."""
        return self._vocabulary[0]

    @property
    def longest_token(self) -> int:
        """Number of characters of the longest token, or of its bytes where tokens are bytes."""
        return self._vocabulary[1]

    @cached_property
    def _vocabulary(self) -> tuple[int, int]:
        vocabulary = self.tokenizer.get_vocab()
        return 1 + max(vocabulary.values()), max(map(len, vocabulary))

    def ids(self, question: str) -> list[int]:
        """Prompt ids of a question; control tokens in it are encoded as text.

        Raises:
            BadInput: an empty question.
        """
        if not question.strip():
            raise BadInput("the prompt is empty")
        texts, mark = self._messages.mark([*(text for shot in self.shots for text in shot), question])
        shots = list(zip(texts[0:-1:2], texts[1:-1:2], strict=True))
        text = self._render_chat(shots, texts[-1]) if self.is_chat else self._render_plain(shots, texts[-1])
        return self._encoded(text, mark)

    def conversation(self, turns: Sequence[Turn]) -> list[int]:
        """Prompt ids of a conversation that the assistant continues; control tokens in messages are encoded as text.

        Without a chat template, each user message is a question, an assistant message the answer to it, and a system
        message is plain text; they are separated by empty lines.

        Raises:
            BadInput: an empty conversation, a last message that is not the user's (without a template), or messages
                that the template refuses.
        """
        if not any(turn.content.strip() for turn in turns):
            raise BadInput("the prompt is empty")
        contents, mark = self._messages.mark([turn.content for turn in turns])
        turns = [turn._replace(content=content) for turn, content in zip(turns, contents, strict=True)]
        return self._encoded(self._render_turns(turns) if self.is_chat else self._plain_turns(turns), mark)

    def raw(self, prompt: str) -> list[int]:
        """Ids of a whole prompt, which may contain control tokens, with those that the tokenizer adds.

        Raises:
            BadInput: text that is not valid Unicode.
        """
        ids: list[int] = encode(self.tokenizer, prompt, add_special_tokens=True).ids
        return ids

    def text(self, ids: Sequence[int]) -> str:
        """Decoded text of output ids, without special tokens.

        Raises:
            ModelError: the decoder of the tokenizer fails on them.
        """
        return decoded(self.tokenizer, ids)

    def _encoded(self, text: str, mark: str) -> list[int]:
        """Ids of a rendered prompt: a chat template writes special tokens itself, to others the tokenizer adds them."""
        return self._messages.ids(text, mark, add_special_tokens=not self.is_chat)

    def _render_plain(self, shots: Sequence[tuple[str, str]], question: str) -> str:
        examples = "".join(f"{self._template.replace('{question}', q)} {a}\n\n" for q, a in shots)
        return examples + self._template.replace("{question}", question)

    def _plain_turns(self, turns: Sequence[Turn]) -> str:
        if turns[-1].role != "user":
            raise BadInput("the last message must be a user's")
        text, before = "", "system"
        for role, content in turns:
            parted = "" if not text else " " if (before, role) == ("user", "assistant") else "\n\n"
            text += parted + (self._template.replace("{question}", content) if role == "user" else content)
            before = role
        return text

    def _render_chat(self, shots: Sequence[tuple[str, str]], question: str) -> str:
        examples = [Turn(role, text) for pair in shots for role, text in zip(("user", "assistant"), pair, strict=True)]
        return self._render_turns([*examples, Turn("user", question)])

    def _render_turns(self, turns: Sequence[Turn]) -> str:
        try:
            return str(
                self._chat_template.render(
                    messages=[turn._asdict() for turn in turns],
                    add_generation_prompt=True,
                    tools=None,
                    documents=None,
                    **_special_tokens(self._settings),
                )
            )
        except Exception as exc:  # a template may fail in any way that an expression can
            raise BadInput(f"the tokenizer's chat template fails: {exc}") from exc

    @cached_property
    def _chat_template(self) -> Any:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        environment.filters["tojson"] = _to_json
        return environment.from_string(str(self._chat))


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter of transformers; jinja's own escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Texts of `bos_token` and other special tokens that are set; each value is a text or an object with `content`."""
    texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in settings.items() if k.endswith("_token")}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _settings(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    settings = json_object(path) if path.exists() else {}
    template = directory / "chat_template.jinja"
    if template.exists():
        try:
            settings["chat_template"] = file_bytes(template).decode("utf-8")
        except (OSError, ValueError) as exc:
            raise ModelError(f"{template} cannot be read: {exc}") from exc
    chat = settings.get("chat_template")
    if isinstance(chat, list):  # several named templates: the default one
        default = [one.get("template") for one in chat if isinstance(one, dict) and one.get("name") == "default"]
        chat = settings["chat_template"] = default[-1] if default else None
    if chat is not None and not isinstance(chat, str):
        raise ModelError(f"{path}: chat_template is not text")
    return settings
