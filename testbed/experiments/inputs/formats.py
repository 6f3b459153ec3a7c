"""Formats of public tasks and chat logs: one row of a file, recognised by its keys, as the prompts that it stands for.

| format | source | keys |
|---|---|---|
| GSM8K | openai/grade-school-math, `test.jsonl` | `question`, `answer` |
| MT-Bench | lm-sys/FastChat, `mt_bench/question.jsonl` | `question_id`, `category`, `turns`, `reference` |
| MT-Bench, hub | HuggingFaceH4/mt_bench_prompts | `prompt_id`, `category`, `prompt` (a list), `reference` |
| Spec-Bench | hemingkx/Spec-Bench, `data/spec_bench/question.jsonl` | as MT-Bench |
| SPEED-Bench | nvidia/SPEED-Bench (arXiv 2604.09557), prepared files | as MT-Bench, `sub_category`, `source`, … |
| HumanEval | openai/human-eval, `HumanEval.jsonl` | `task_id`, `prompt`, `entry_point`, `test`, `canonical_solution` |
| chat logs | OpenAI's `messages`; ShareGPT's `conversations` | `messages` of `role`, `content`; or of `from`, `value` |
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from testbed.errors import BadInput
from testbed.models.scoring import final_number
from testbed.ue.prompts import Prompter, Turn

MOST_TURNS = 256
"""Largest number of messages of a conversation."""
UNPREPARED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""Begin of the text that stands in SPEED-Bench's rows in place of prompts whose licence forbids copies."""
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
"""Roles of messages, in the words of OpenAI and of ShareGPT."""


class NoPrompt(BadInput):
    """A row of a known format that no prompt of text alone stands for, such as a call of a tool."""


class Program(msgspec.Struct, frozen=True):
    """What a program must do to be right: define `entry_point`, and pass `check(entry_point)` of `test`."""

    entry_point: str
    test: str


class Example(msgspec.Struct, frozen=True):
    """A prompt and its reference answer; `answer` may contain worked steps before ``#### result``."""

    question: str
    answer: str | None = None
    id: str | None = None
    """Name of the row in its data set."""
    category: str | None = None
    turn: int = 0
    """Number of this prompt in its conversation, from 0."""
    conversation: tuple[Turn, ...] = ()
    """Messages of its row, which the examples of a row share."""
    at: int = 0
    """Index of the question in them."""
    program: Program | None = None

    @property
    def before(self) -> tuple[Turn, ...]:
        """Messages before the question, as far as the data set has them."""
        return self.conversation[: self.at]

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Numbers of the turns before this one whose answers the data set lacks: the model's own take their place."""
        asked = [i for i, one in enumerate(self.before) if one.role == "user"]
        follow = {i for i, one in enumerate(self.before) if one.role == "assistant"}
        return tuple(turn for turn, i in enumerate(asked) if i + 1 not in follow)

    @property
    def result(self) -> str | None:
        """The reference result, or None; an answer that is a bare number is its own result."""
        return None if self.answer is None else final_number(self.answer) or final_number(f"#### {self.answer.strip()}")


def prompt_ids(prompter: Prompter, example: Example, answers: Mapping[int, str] | None = None) -> list[int]:
    """Ids of an example with its context: system messages, worked examples, the messages before it, and its question.

    Args:
        answers: the model's own answers by turn, where the data set has none; missing ones are empty.

    Raises:
        BadInput: an empty question, or a conversation that the chat template refuses.
    """
    if not example.before:
        return prompter.ids(example.question)
    messages, unanswered, turn = [], set(example.unanswered), 0
    for message in example.before:
        messages.append(message)
        if message.role == "user":
            messages += [Turn("assistant", (answers or {}).get(turn, ""))] if turn in unanswered else []
            turn += 1
    shots = [
        Turn(role, text) for shot in prompter.shots for role, text in zip(("user", "assistant"), shot, strict=True)
    ]
    system = list(itertools.takewhile(lambda message: message.role == "system", messages))
    return prompter.conversation([*system, *shots, *messages[len(system) :], Turn("user", example.question)])


def worked_examples(examples: Sequence[Example]) -> list[tuple[str, str]]:
    """Questions and answers of examples that precede every prompt.

    Raises:
        BadInput: one has messages before its question.
    """
    for example in examples:
        if example.before:
            raise BadInput(
                f"{example.question[:40]!r} cannot be a worked example (--shots): its data set has messages before it"
            )
    return [(example.question, example.answer or "") for example in examples]


def row_of(example: Example) -> dict[str, Any]:
    """A row of a JSONL file that stands for the first prompt of a conversation, as `examples_of` reads it."""
    named = {"id": example.id, "category": example.category}
    row = {key: value for key, value in named.items() if value is not None}
    if example.program is not None:
        test = {"entry_point": example.program.entry_point, "test": example.program.test}
        return {**row, "prompt": example.question, **test, "canonical_solution": example.answer}
    if not example.before:
        return {**row, "question": example.question, "answer": example.answer}
    asked = [*example.before, Turn("user", example.question)]
    answered = [] if example.answer is None else [Turn("assistant", example.answer)]
    return {**row, "messages": [one._asdict() for one in (*asked, *answered)]}


def examples_of(where: str, row: Any) -> Iterator[Example]:
    """The prompts of a row: one, or one for every turn of a conversation.

    Args:
        where: file and line of the row, for messages.

    Raises:
        BadInput: a row of no known format, with values of other types, or with text that has no UTF-8.
    """
    for example in _examples(where, row):
        test = example.program.test if example.program is not None else None
        for text in (example.question, example.answer, example.id, example.category, test):
            _check_utf8(where, text or "")
        yield example


def _check_utf8(where: str, text: str) -> None:
    """Refuse half of a pair of UTF-16, which JSON can spell, but no file of results can hold.

    Raises:
        BadInput: it has one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise BadInput(f"{where} has {text[exc.start]!a}, which is half of a character") from exc


def _examples(where: str, row: Any) -> Iterator[Example]:
    """The prompts of a row, unchecked."""
    if not isinstance(row, dict):
        raise BadInput(f"{where} has no `question` (or `prompt`)")
    if isinstance(log := row.get("messages", row.get("conversations")), list):
        yield from _log(where, row, log)
    elif isinstance(turns := row.get("turns", row.get("prompt")), list):
        yield from _turns(where, row, turns)
    elif "entry_point" in row:
        yield _program(where, row)
    else:
        question = row.get("question") or row.get("prompt")
        answer = row.get("answer")
        text = _text(where, "`question` (or `prompt`)", question)
        yield Example(text, None if answer is None else str(answer), _name(row), _category(row))


def _turns(where: str, row: dict[str, Any], turns: Sequence[Any]) -> Iterator[Example]:
    """A conversation whose answers are the model's own: every turn follows the one before."""
    if not 0 < len(turns) <= MOST_TURNS:
        raise BadInput(f"{where} has {len(turns)} turns; a conversation has 1 to {MOST_TURNS}")
    texts = [_text(where, "`turns`", text) for text in turns]
    if any(text.startswith(UNPREPARED) for text in texts):
        raise BadInput(f"{where} has no prompt, only a note where it comes from: run SPEED-Bench's prepare.py first")
    conversation = tuple(Turn("user", text) for text in texts)
    given = row.get("reference")
    references = given if isinstance(given, list) else [given]
    for turn, text in enumerate(texts):
        reference = references[turn] if turn < len(references) else None
        answer = reference if isinstance(reference, str) and reference.strip() else None
        yield Example(text, answer, _name(row), _category(row), turn, conversation, turn)


def _log(where: str, row: dict[str, Any], log: Sequence[Any]) -> Iterator[Example]:
    """A recorded conversation: every message of the user is a prompt, with the log's messages before it, and the log's
    answer as its reference.
    """
    if len(log) > MOST_TURNS:
        raise BadInput(f"{where} has {len(log)} messages; a conversation has at most {MOST_TURNS}")
    messages = tuple(message for message in (_message(where, one) for one in log) if message is not None)
    asked = [i for i, one in enumerate(messages) if one.role == "user"]
    if not asked:
        raise NoPrompt(f"{where} has no message of the user")
    for turn, i in enumerate(asked):
        after = messages[i + 1] if i + 1 < len(messages) else None
        answer = after.content if after is not None and after.role == "assistant" else None
        yield Example(messages[i].content, answer, _name(row), _category(row), turn, messages, i)


def _message(where: str, message: Any) -> Turn | None:
    """A message of a log; None: it has no text, so that an answer of the model's own may take its place."""
    if not isinstance(message, dict):
        raise BadInput(f"{where} has a message that is no object")
    role = str(message.get("role", message.get("from"))).lower()
    if role not in ROLES:
        raise NoPrompt(f"{where} has a message of {role!r}; known: {', '.join(ROLES)}")
    if message.get("tool_calls") or message.get("function_call"):
        raise NoPrompt(f"{where} calls a tool")
    content = message.get("content", message.get("value"))
    if isinstance(content, list):  # OpenAI's parts
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise NoPrompt(f"{where} has a message with parts other than text")
        content = "".join(str(part.get("text", "")) for part in content)
    if content is not None and not isinstance(content, str):
        raise NoPrompt(f"{where} has a message whose content is no text")
    if ROLES[role] == "user":
        return Turn("user", _text(where, "`content`", content))
    return Turn(ROLES[role], content) if content and content.strip() else None


def _program(where: str, row: dict[str, Any]) -> Example:
    """A function to complete."""
    prompt, entry, test = (_text(where, f"`{key}`", row.get(key)) for key in ("prompt", "entry_point", "test"))
    if not entry.isidentifier():
        raise BadInput(f"{where} has no `entry_point` that is a name")
    answer = row.get("canonical_solution")
    answer = answer if isinstance(answer, str) else None
    return Example(prompt, answer, _name(row), _category(row), program=Program(entry, test))


def _text(where: str, what: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{where} has no {what}" + ("" if value is None else " that is a text with words in it"))
    return value


def _name(row: dict[str, Any]) -> str | None:
    """A row's own name."""
    names = (row.get(key) for key in ("question_id", "prompt_id", "task_id", "id"))
    return next((str(name) for name in names if isinstance(name, str | int)), None)


def _category(row: dict[str, Any]) -> str | None:
    category = row.get("category")
    return category if isinstance(category, str) and category.strip() else None
