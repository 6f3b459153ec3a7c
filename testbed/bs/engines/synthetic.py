"""A target without a model: its outputs are a pure function of the prefix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.batched import BatchedEngine
from testbed.errors import BadInput
from testbed.synthetic import MIN_VOCAB, VOCAB, Peaked, next_token, noise, runner_up, uniform


class SyntheticEngine(BatchedEngine):
    """A target on `testbed.synthetic`'s language."""

    any_thread = True

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        vocab_size: int = VOCAB,
        hidden_size: int = 64,
        max_model_len: int = 4096,
        max_batch_tokens: int = 8192,
        chunk_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        """Set up the engine.

        Args:
            model: name of the model; None: synthetic.
            vocab_size: tokens of the language.
            hidden_size: dimensions of the hidden states, which are noise.
            max_model_len: positions of a sequence.
            max_batch_tokens: new tokens of one pass.
            chunk_tokens: new tokens of one prompt in a pass; None: as many as it has room for.
            seed: seed of the language; `target_seed` of the synthetic drafter.

        Raises:
            BadInput: fewer than `MIN_VOCAB` tokens.
        """
        if vocab_size < MIN_VOCAB:
            raise BadInput(f"a synthetic vocabulary needs {MIN_VOCAB} tokens or more, got {vocab_size}")
        super().__init__()
        self.model_name = "synthetic" if model is None else str(model)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.max_positions = max_model_len
        self.max_batch_tokens = max_batch_tokens
        self.block_size, self.kv_tokens = 1, None
        self.chunk_tokens = chunk_tokens
        self.seed = seed

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """See `BatchedEngine.compute`."""
        return [self._verify_one(request) for request in batch]

    def _verify_one(self, request: VerifyRequest) -> VerifyResult:
        prompt = request.prompt
        prefixes = [prompt[:end] for end in range(len(request.prefix), len(prompt) + 1)]
        shapes = [self._shape(prefix) for prefix in prefixes]
        hidden = [noise(prefix, self.seed, "hidden", self.hidden_size) for prefix in prefixes if request.hidden]
        gaps = [shape.gap(token) for shape, token in zip(shapes, request.draft.tolist(), strict=False)]
        return VerifyResult(
            argmax=np.array([shape.best for shape in shapes], dtype=np.int32),
            margin=np.array([shape.logit_margin for shape in shapes], dtype=np.float32),
            draft_gap=np.array(gaps, dtype=np.float32),
            hidden=np.stack(hidden) if request.hidden else None,
            logprobs=np.log(np.stack([shape.probs() for shape in shapes])) if request.logprobs else None,
        )

    def _shape(self, prefix: NDArray[np.int32]) -> Peaked:
        """The target's distribution after a prefix."""
        return Peaked(
            best=next_token(prefix, self.vocab_size, self.seed),
            second=runner_up(prefix, self.vocab_size, self.seed),
            vocab=self.vocab_size,
            sharpness=uniform(prefix, self.seed, "target"),
        )

    def close(self) -> None:
        """Nothing."""
