"""Reference decoding with transformers, in float32 and batched over prompts, independent of the serving path.

`speculate` runs rounds of draft, verify, judge and commit for many prompts in lockstep, with any judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from testbed.models.checkpoint import causal_lm

Keep = Callable[[list[int], list[list[int]]], list[bool]]
"""Judge of mismatches: (prompt indices, ids up to and including the drafted token) → whether each is kept."""


@dataclass
class BatchDecoder:
    """Greedy batch decoding with a causal language model."""

    model: Any
    end_id: int
    """End of an output; also the padding."""
    batch: int = 100

    @classmethod
    def load(cls, directory: Path, end_id: int) -> BatchDecoder:
        """Load a transformers directory in float32.

        Raises:
            ModelError: see `causal_lm`.
        """
        return cls(causal_lm(directory).eval(), end_id)

    @property
    def parameters(self) -> int:
        """Number of parameters; tied ones count once."""
        return sum(p.numel() for p in self.model.parameters())

    def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """Greedy continuations of prompts, in order, up to and including the end id."""
        return self._batched(prompts, lambda group: self._generate(group, max_tokens))

    def argmax(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        """Greedy next token after each token of each sequence."""
        return self._batched(sequences, self._forward)

    def _batched(
        self, sequences: Sequence[Sequence[int]], run: Callable[[list[Sequence[int]]], list[list[int]]]
    ) -> list[list[int]]:
        """Run `run` on groups of similar length, to limit padding."""
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        outputs: list[list[int]] = [[] for _ in sequences]
        for start in range(0, len(order), self.batch):
            group = order[start : start + self.batch]
            for index, ids in zip(group, run([sequences[i] for i in group]), strict=True):
                outputs[index] = ids
        return outputs

    @torch.inference_mode()
    def _generate(self, prompts: list[Sequence[int]], max_tokens: int) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[self.end_id] * (width - len(p)) + list(p) for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        out: Tensor = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, pad_token_id=self.end_id,
            eos_token_id=self.end_id,
        )  # fmt: skip
        rows: list[list[int]] = out[:, width:].tolist()
        return [row[: row.index(self.end_id) + 1] if self.end_id in row else row for row in rows]

    @torch.inference_mode()
    def _forward(self, sequences: list[Sequence[int]]) -> list[list[int]]:
        width = max(map(len, sequences))
        ids = torch.tensor([list(s) + [self.end_id] * (width - len(s)) for s in sequences])
        best = self.model(ids).logits.argmax(-1).tolist()
        return [row[: len(s)] for row, s in zip(best, sequences, strict=True)]


@dataclass
class Speculation:
    """State of one prompt in `speculate`."""

    prompt_len: int
    ids: list[int]
    """Ids of prompt and output."""
    committed: list[int] = field(default_factory=list)
    """Tokens committed in each round."""
    drafted: int = 0
    accepted: int = 0
    rejections: int = 0

    @property
    def output(self) -> list[int]:
        """Output ids, including the end id."""
        return self.ids[self.prompt_len :]


def speculate(
    drafter: BatchDecoder,
    target: BatchDecoder,
    prompts: Sequence[Sequence[int]],
    window: int,
    max_tokens: int,
    keep: Keep,
) -> list[Speculation]:
    """Decode all prompts speculatively in lockstep; `keep` judges the mismatches of a window one after the other."""
    states = [Speculation(len(p), list(p)) for p in prompts]
    running = list(range(len(states)))
    while running:
        drafts = drafter.complete([states[i].ids for i in running], window)
        full = [states[i].ids + draft for i, draft in zip(running, drafts, strict=True)]
        best = [row[-len(d) - 1 :] for row, d in zip(target.argmax(full), drafts, strict=True)]
        stops = _first_rejected(running, states, drafts, best, keep)
        for i, draft, row, stop in zip(running, drafts, best, stops, strict=True):
            _commit(states[i], draft, row, stop, target.end_id, max_tokens)
        running = [i for i in running if not _finished(states[i], target.end_id, max_tokens)]
    return states


def _first_rejected(
    running: list[int], states: list[Speculation], drafts: list[list[int]], best: list[list[int]], keep: Keep
) -> list[int]:
    """Number of drafted tokens kept in each window."""
    stops = [len(draft) for draft in drafts]
    mismatches = [[p for p, t in enumerate(d) if t != b[p]] for d, b in zip(drafts, best, strict=True)]
    open_ = [w for w, positions in enumerate(mismatches) if positions]
    turn = 0
    while open_:
        places = [mismatches[w][turn] for w in open_]
        asked = [states[running[w]].ids + drafts[w][: p + 1] for w, p in zip(open_, places, strict=True)]
        kept = keep([running[w] for w in open_], asked)
        for w, p, stays in zip(open_, places, kept, strict=True):
            if not stays:
                stops[w] = p
        turn += 1
        open_ = [w for w, stays in zip(open_, kept, strict=True) if stays and len(mismatches[w]) > turn]
    return stops


def _commit(state: Speculation, draft: list[int], best: list[int], stop: int, end_id: int, max_tokens: int) -> None:
    added = [*draft[:stop], best[stop]][: max_tokens - len(state.output)]
    if end_id in added:
        added = added[: added.index(end_id) + 1]
    state.ids += added
    state.committed.append(len(added))
    state.drafted += len(draft)
    state.accepted += stop
    state.rejections += stop < len(draft)


def _finished(state: Speculation, end_id: int, max_tokens: int) -> bool:
    return state.ids[-1] == end_id or len(state.output) >= max_tokens
