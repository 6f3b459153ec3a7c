"""Drafter with llama.cpp: several sequences in one context, rolled back to the committed prefix."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from testbed.assets.fingerprints import model_fingerprint
from testbed.errors import BadInput, ModelError
from testbed.llama.context import LlamaContext, LlamaOptions
from testbed.llama.kept import KeptTexts
from testbed.ue.drafters.base import Choose, DraftToken
from testbed.ue.llama.logits import LogitReader


class LlamaDrafter:
    """A GGUF model as a drafter (`testbed.ue.drafters.base.Drafter`).

    Sequences may be used from different threads; a lock serialises the passes.
    """

    def __init__(
        self,
        path: Path,
        vocab_size: int | None = None,
        *,
        context: int | None = None,
        sequences: int = 4,
        threads: int | None = None,
        gpu_layers: int = -1,
        flash_attention: bool | None = None,
        kv_type: Literal["f16", "f32"] = "f16",
        keep: bool = False,
    ) -> None:
        """Load a model.

        Args:
            path: GGUF file.
            vocab_size: number of the tokenizer's ids; further rows are padding and never drafted. None: all rows.
            context: see `LlamaOptions` for this and the following options.
            keep: whether a conversation that comes back, grown by a turn, has only its new part computed. Its drafts
                may then differ in the last bits from those of a computation at once.

        Raises:
            ModelError: the file is missing or unusable, its cache cannot be rolled back, it has fewer positions than
                `context`, or fewer rows than the tokenizer has ids.
            ConfigError: an option out of range.
        """
        options = LlamaOptions(context, sequences, threads, gpu_layers, flash_attention, kv_type)
        self._llama = LlamaContext(path, options)
        self.vocab_size = self._llama.vocab_size(vocab_size)
        self.hidden_size = self._llama.hidden_size
        self.context = self._llama.context
        self.fingerprint = model_fingerprint(path)
        self._reader = LogitReader(self.vocab_size)
        self._free = list(reversed(range(sequences)))
        self._keep, self._kept = keep, KeptTexts()
        """Texts of unused sequences that are kept."""
        self._closed = False
        self._lock = threading.Lock()

    def open(
        self, prompt: Sequence[int], *, distributions: bool = False, choose: Choose | None = None
    ) -> LlamaSequence:
        """Prefill a prompt except for its last token, which the first draft computes; see `Drafter.open`."""
        ids = [int(i) for i in prompt]
        if not ids:
            raise BadInput("the prompt is empty; give at least one token")
        if len(ids) > self.context:
            raise BadInput(f"the prompt has {len(ids)} tokens, the drafter's context {self.context}")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise BadInput(f"the prompt has ids outside the drafter's vocabulary of {self.vocab_size}")
        with self._lock:
            self._check_open()
            if not self._free:
                raise ModelError("all sequences of the drafter are in use; close one or load it with more")
            place, known = self._place(ids)
            try:
                self._llama.compute(place, known, ids[known:-1], outputs=False)
            except ModelError:
                self._llama.forget(place, 0)
                self._free.append(place)
                raise
        return LlamaSequence(self, place, ids, distributions, choose)

    def _place(self, ids: Sequence[int]) -> tuple[int, int]:
        """A free place for a text, and the number of its leading ids that are computed there."""
        if (grown := self._kept.grown(ids)) is not None:
            place, known = grown
        else:
            empty = [place for place in self._free if place not in self._kept]
            place, known = empty[-1] if empty else self._kept.places()[0], 0
        self._free.remove(place)
        if place in self._kept:
            self._kept.take(place)
            self._llama.forget(place, known)
        return place, known

    def close(self) -> None:
        """Free the model; its sequences can no longer draft. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._llama.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ModelError("the drafter is closed")

    def _next(
        self, place: int, start: int, ids: Sequence[int], distribution: bool, choose: Choose | None
    ) -> DraftToken:
        """Compute ids from position `start` on; returns the token that follows the last one."""
        with self._lock:
            self._check_open()
            self._llama.compute(place, start, ids, outputs=True)
            try:
                stats = self._reader.stats(self._llama.logits()[: self.vocab_size])
            except ValueError as exc:
                self._llama.forget(place, start)
                raise ModelError(f"{self._llama.path}: the drafter's {exc}") from exc
            probs = self._reader.probs() if distribution or choose else None
            return DraftToken(
                id=stats.argmax if choose is None or probs is None else choose(probs, start + len(ids)),
                top1=stats.top1,
                entropy=stats.entropy,
                margin=stats.margin,
                logit_std=stats.std,
                hidden=self._llama.hidden().astype(np.float16),
                probs=probs if distribution else None,
            )

    def _rollback(self, place: int, length: int) -> None:
        with self._lock:
            if not self._closed:
                self._llama.forget(place, length)

    def _release(self, place: int, computed: Sequence[int]) -> None:
        with self._lock:
            if not self._closed:
                if self._keep and computed:
                    self._kept.keep(place, computed)
                else:
                    self._llama.forget(place, 0)
                self._free.append(place)


class LlamaSequence:
    """One sequence of a `LlamaDrafter`; implements `testbed.ue.drafters.base.DraftSequence`.

    `_ids` holds the committed tokens, followed by drafted ones. The first `_cached` of them are in the KV cache; the
    next draft computes the rest (the last draft if it was accepted, and the token committed after it) in one pass.
    """

    def __init__(
        self, drafter: LlamaDrafter, place: int, prompt: list[int], distributions: bool, choose: Choose | None
    ) -> None:
        """Created by `LlamaDrafter.open`, with the prompt except for its last token in the cache."""
        self._drafter, self._place, self._distributions, self._choose = drafter, place, distributions, choose
        self._ids = prompt
        self._length = len(prompt)
        self._cached = len(prompt) - 1
        self._closed = False

    @property
    def length(self) -> int:
        """Number of committed tokens, including the prompt."""
        return self._length

    def draft_one(self) -> DraftToken:
        """Draft the next token; see `DraftSequence.draft_one`."""
        self._check_open()
        if len(self._ids) > self._drafter.context:
            raise ModelError(f"the drafter's context of {self._drafter.context} positions is full")
        new = self._ids[self._cached :]
        token = self._drafter._next(self._place, self._cached, new, self._distributions, self._choose)
        self._cached = len(self._ids)
        self._ids.append(token.id)
        return token

    def commit(self, accepted: int, token: int) -> None:
        """Keep `accepted` drafted tokens, then `token`, and roll the cache back; see `DraftSequence.commit`."""
        self._check_open()
        drafted = len(self._ids) - self._length
        if not 0 <= accepted <= drafted:
            raise ValueError(f"{accepted} tokens accepted of {drafted} drafted")
        if not 0 <= token < self._drafter.vocab_size:
            raise ValueError(f"token {token} is outside the drafter's vocabulary of {self._drafter.vocab_size}")
        kept = self._length + accepted
        if kept < self._cached:
            self._drafter._rollback(self._place, kept)
            self._cached = kept
        self._ids[kept:] = [int(token)]
        self._length = kept + 1

    def close(self) -> None:
        """Free the sequence and its cache; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._drafter._release(self._place, self._ids[: self._cached])

    def _check_open(self) -> None:
        if self._closed:
            raise ModelError("the sequence is closed")
