"""Answers of a transformers model to many prompts at a time, with its most likely ids at every token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from testbed.errors import EngineError
from testbed.models.checkpoint import causal_lm


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

    def settings(self) -> GenerationConfig:
        """transformers' settings, without those that come with the model."""
        sampled = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        return GenerationConfig(
            max_new_tokens=self.max_tokens, eos_token_id=sorted(self.ends) or None, pad_token_id=0,
            **(sampled if self.temperature else {"do_sample": False}),
        )  # fmt: skip


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
        ModelError: see `causal_lm`.
    """

    def __init__(self, model: Path, dtype: str, vocab_size: int, device: str | None = None) -> None:
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._vocab_size = vocab_size
        self._model = causal_lm(model, dtype).to(self._device).eval()

    def answers(self, prompts: Sequence[Sequence[int]], how: Generation) -> list[Generated]:
        """Answers to the prompts in order, all in one batch.

        Raises:
            EngineError: the model failed, for want of memory for instance.
        """
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        likely = _Likely(self._vocab_size, how.top)
        try:
            with torch.random.fork_rng():
                torch.manual_seed(how.seed)
                found = self._model.generate(
                    ids.to(self._device), attention_mask=mask.to(self._device), generation_config=how.settings(),
                    logits_processor=LogitsProcessorList([likely]),
                )  # fmt: skip
        except RuntimeError as exc:
            raise EngineError(f"transformers failed on {len(prompts)} prompts: {exc}") from exc
        outputs = found[:, longest:].to(torch.int32).cpu().numpy()
        top, logprobs = (torch.stack(column, dim=1).cpu().numpy() for column in (likely.top, likely.logprobs))
        ended = np.isin(outputs, list(how.ends))
        lengths = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, outputs.shape[1])
        return [Generated(*(part[i, :length] for part in (outputs, top, logprobs))) for i, length in enumerate(lengths)]


class _Likely(LogitsProcessor):
    """Leaves out ids that are no tokens, and keeps the most likely ones of each step."""

    def __init__(self, vocab_size: int, count: int) -> None:
        self._vocab_size, self._count = vocab_size, count
        self.top, self.logprobs = list[Tensor](), list[Tensor]()

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        real = scores[:, : self._vocab_size].float()
        best, top = real.topk(min(self._count, real.shape[1]), dim=-1)
        self.top.append(top.to(torch.int32))
        self.logprobs.append((best - real.logsumexp(dim=-1, keepdim=True)).half())
        return scores.index_fill(1, torch.arange(self._vocab_size, scores.shape[1], device=scores.device), -torch.inf)
