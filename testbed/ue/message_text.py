"""Tokenization of prompts in which control tokens come from templates only: in a message, their text is text."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Encoding, Tokenizer

from testbed.errors import BadInput
from testbed.protocols.vocabulary import panics_refused

LETTERS = string.ascii_letters + string.digits + "#%&*@^~" + "".join(map(chr, range(0xE000, 0xE010)))
"""Characters of marks."""
MARK = 12
"""Number of characters of a mark."""


class MessageText:
    """Encodes prompts; a control token (such as `<|im_end|>`) that a message spells out is encoded as ordinary text.

    Messages are marked before a template renders them: a random mark in the text of each control token hides it from
    the tokenizer, and tells afterwards which parts of the prompt are to be encoded as text.

    Attributes:
        controls: control tokens by their ids: the tokenizer's special tokens except the one for unknown text.
    """

    def __init__(self, tokenizer: Tokenizer, unknown: str | None = None) -> None:
        """`unknown`: the token for unknown text, which may occur in messages."""
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        unknown = getattr(tokenizer.model, "unk_token", None) or unknown
        self.controls = {i: t.content for i, t in added.items() if t.special and t.content != unknown}
        self._names = sorted((name for name in self.controls.values() if len(name) > 1), key=len, reverse=True)
        self._letters = [c for c in LETTERS if not any(c in name for name in self._names)]  # a mark spells no token
        self._plain = Tokenizer(tokenizer.model)  # shares the model; knows no added tokens
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            if (shared := getattr(tokenizer, part)) is not None:
                setattr(self._plain, part, shared)

    def mark(self, messages: Sequence[str]) -> tuple[list[str], str]:
        """The messages with the control tokens in them marked, and the mark; it is empty if there are none."""
        if not any(name in text for text in messages for name in self._names):
            return list(messages), ""
        mark = self._random_mark()
        while any(mark in text for text in messages):
            mark = self._random_mark()
        return [self._marked(text, mark) for text in messages], mark

    def ids(self, prompt: str, mark: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of a rendered prompt.

        Raises:
            BadInput: a message contains a control token in a form that cannot be encoded as text.
        """
        encoding = encode(self._tokenizer, prompt, add_special_tokens=add_special_tokens)
        if mark:
            return list(self._pieces(prompt, mark, encoding))
        ids: list[int] = encoding.ids
        own = sum(encoding.special_tokens_mask)
        if sum(i in self.controls for i in ids) > own + sum(prompt.count(name) for name in self.controls.values()):
            raise BadInput("a message contains a control token of the model")  # spelled by what is normalized
        return ids

    def _random_mark(self) -> str:
        return "".join(secrets.choice(self._letters) for _ in range(MARK))

    def _marked(self, text: str, mark: str) -> str:
        for name in self._names:
            while name in text:
                text = text.replace(name, name[0] + mark + name[1:])
        return text

    def _pieces(self, prompt: str, mark: str, encoding: Encoding) -> Iterator[int]:
        """Ids of the prompt, with marked parts between control tokens encoded as text."""
        start, ids = 0, list[int]()
        for token, (begin, end), own in zip(encoding.ids, encoding.offsets, encoding.special_tokens_mask, strict=True):
            if not own and token not in self.controls:
                ids.append(token)
                continue
            if not own:
                yield from self._piece(prompt[start:begin], mark, ids)
                start, ids = end, []
            yield token
        yield from self._piece(prompt[start:], mark, ids)

    def _piece(self, text: str, mark: str, ids: Iterable[int]) -> Iterable[int]:
        if mark not in text:
            return ids
        whole: list[int] = encode(self._plain, text.replace(mark, "")).ids
        if self.controls.keys().isdisjoint(whole):
            return whole
        # the model itself knows the token: it cannot form across two texts
        parts = [i for part in text.split(mark) for i in encode(self._plain, part).ids]
        if not self.controls.keys().isdisjoint(parts):
            raise BadInput("a message contains a control token of the model")
        return parts


def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> Encoding:
    """Encode one text; unlike the tokenizer's `encode`, it leaves the interpreter to other threads meanwhile.

    Raises:
        BadInput: the text contains surrogates, which have no UTF-8.
        ModelError: a pattern of the tokenizer fails on it.
    """
    try:
        with panics_refused("this prompt"):
            return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
    except TypeError as exc:
        raise BadInput("the prompt contains characters that are not valid Unicode") from exc
