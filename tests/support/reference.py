"""Reference implementation with transformers in float32, for tests of drafters and engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class Reference:
    """One model under transformers, on its first `tokens` ids."""

    def __init__(self, directory: Path, tokens: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.tokens = tokens

    def outputs(self, ids: list[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Logits [len(ids), tokens] and final hidden states [len(ids), hidden_size]."""
        import torch

        with torch.inference_mode():
            out = self.model(torch.tensor([ids]), output_hidden_states=True)
        return out.logits[0, :, : self.tokens].numpy(), out.hidden_states[-1][0].numpy()

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The next `count` tokens, from transformers' `generate`."""
        import torch

        padding = list(range(self.tokens, self.model.config.vocab_size))
        out = self.model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            suppress_tokens=padding or None,
        )
        return out[0, len(ids) :].tolist()
