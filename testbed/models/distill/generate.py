"""Answers of a transformers model to many prompts at a time, with its most likely ids at every token.

A pass computes one token of each sequence. Prompts are padded on the left; sequences that have ended are dropped from
the batch once they are half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from testbed.errors import EngineError


class Generation(NamedTuple):
    """How answers are generated.

    Attributes:
        max_tokens: length limit of an answer.
        ends: ids that end it, which it keeps.
        top: number k of ids kept at each token.
        temperature: 0: the most likely token; above: tokens are sampled.
        seed: seed of sampled tokens. The same seed gives the same tokens on the same device and batch.
    """

    max_tokens: int
    ends: Collection[int]
    top: int
    temperature: float = 0.0
    seed: int = 0


class Generated(NamedTuple):
    """One answer: [m] ids, [m, k] most likely ids, [m, k] their natural log-probabilities."""

    output: NDArray[np.int32]
    top: NDArray[np.int32]
    logprobs: NDArray[np.float16]


class BatchGenerator:
    """Generates answers of a model.

    Args:
        model: Hugging Face directory.
        dtype: float32 or bfloat16.
        vocab_size: real tokens; rows of the head beyond them are never chosen.
        device: torch device; None: a GPU if available.

    Raises:
        EngineError: transformers could not load the model.
    """

    def __init__(self, model: Path, dtype: str, vocab_size: int, device: str | None = None) -> None:
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._vocab_size = vocab_size
        try:
            made: Any = AutoModelForCausalLM.from_pretrained(
                model, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True, trust_remote_code=False
            )
        except Exception as exc:
            raise EngineError(f"transformers could not load {model}: {exc}") from exc
        self._model = made.to(self._device).eval()

    @torch.inference_mode()
    def answers(
        self, prompts: Sequence[Sequence[int]], how: Generation, told: Callable[[int], None] = lambda done: None
    ) -> list[Generated]:
        """Answers to the prompts in order, all in one batch.

        Args:
            told: called with the number of answers that have ended.

        Raises:
            EngineError: the model failed, for want of memory for instance.
        """
        batch = _Sequences(prompts, how, self._device)
        try:
            while len(batch.live):
                batch.add(self._next(batch))
                told(len(prompts) - int((~batch.ended).sum()))
        except RuntimeError as exc:
            raise EngineError(f"transformers failed on {len(batch.live)} sequences: {exc}") from exc
        return batch.outputs()

    def _next(self, batch: _Sequences) -> Tensor:
        """Logits [live sequences, vocab_size] of the next token."""
        found = self._model(
            batch.inputs, attention_mask=batch.mask, position_ids=batch.positions, past_key_values=batch.cache,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        logits: Tensor = found.logits[:, -1, : self._vocab_size].float()
        return logits


class _Sequences:
    """Sequences that are generated together.

    Attributes:
        live: [b] indices of the sequences in the batch, of which some may have ended.
        ended: [b] whether they have.
        inputs, mask, positions: what the next pass reads.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], how: Generation, device: torch.device) -> None:
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        self.inputs, self.mask = ids.to(device), mask.to(device)
        self.positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
        self.cache = DynamicCache()
        self.live = torch.arange(len(prompts), device=device)
        self.ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        self._how = how
        self._ends = torch.tensor(sorted(how.ends), dtype=torch.int64, device=device)
        self._random = torch.Generator(device).manual_seed(how.seed)
        self._columns: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._count = len(prompts)

    def add(self, logits: Tensor) -> None:
        """Append the next token of every sequence."""
        how = self._how
        best, top = logits.topk(min(how.top, logits.shape[1]), dim=-1)
        logprobs = best - logits.logsumexp(dim=-1, keepdim=True)
        if how.temperature:
            shares = (logits / how.temperature).softmax(dim=-1)
            tokens = shares.multinomial(1, generator=self._random)[:, 0]
        else:
            tokens = logits.argmax(dim=-1)
        going = ~self.ended
        self._columns.append(
            (self.live[going], tokens[going].to(torch.int32), top[going].to(torch.int32), logprobs[going].half())
        )
        self.ended = self.ended | torch.isin(tokens, self._ends)
        if len(self._columns) == how.max_tokens:
            self.ended = torch.ones_like(self.ended)
        self._follow(tokens)

    def _follow(self, tokens: Tensor) -> None:
        """Make these tokens the next pass's inputs; drop ended sequences if they are half of the batch."""
        self.inputs, self.positions = tokens[:, None], self.positions[:, -1:] + 1
        self.mask = torch.cat([self.mask, torch.ones_like(self.inputs)], dim=1)
        kept = (~self.ended).nonzero()[:, 0]
        if 2 * len(kept) > len(self.ended):
            return
        if len(kept):
            self.cache.batch_select_indices(kept)
        self.inputs, self.positions, self.mask = self.inputs[kept], self.positions[kept], self.mask[kept]
        self.live, self.ended = self.live[kept], self.ended[kept]

    def outputs(self) -> list[Generated]:
        """What was generated, by sequence."""
        rows, *fields = (torch.cat(column).cpu().numpy() for column in zip(*self._columns, strict=True))
        order = np.argsort(rows, kind="stable")
        ends = np.cumsum(np.bincount(rows, minlength=self._count))[:-1]
        parts = [np.split(field[order], ends) for field in fields]
        return [Generated(*each) for each in zip(*parts, strict=True)]
