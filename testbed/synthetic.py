"""Synthetic target: the next token is a pure function of the prefix, so that no model is needed.

The synthetic drafter (UE) and the synthetic engine (BS) share it: the drafter agrees with the target at a given
probability. Runs with hundreds of sessions need no model files.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

WINDOW = 8
"""The next token depends on the length of the prefix and its last `WINDOW` tokens."""
MIN_VOCAB = 4
VOCAB = 512
"""Tokens where no tokenizer says how many."""
"""Smallest vocabulary: the best token, the runner-up, and the rest."""
_UNIT = 2.0**-64


def digest(prefix: Sequence[int] | NDArray[np.int32], seed: int, purpose: str) -> int:
    """64-bit hash of a prefix's length, its last `WINDOW` tokens, a seed and a purpose."""
    tail = [int(token) for token in prefix[-WINDOW:]]
    packed = struct.pack(f"<qq{len(tail)}i", seed, len(prefix), *tail)
    return int.from_bytes(blake2b(packed, digest_size=8, person=purpose.encode()).digest(), "little")


def uniform(prefix: Sequence[int] | NDArray[np.int32], seed: int, purpose: str) -> float:
    """A uniform number in [0, 1), determined by the same inputs as `digest`."""
    return (digest(prefix, seed, purpose) >> 11) * _UNIT * 2048.0


def next_token(prefix: Sequence[int] | NDArray[np.int32], vocab: int, seed: int) -> int:
    """The token that follows a prefix, in [0, vocab)."""
    return digest(prefix, seed, "next") % vocab


def runner_up(prefix: Sequence[int] | NDArray[np.int32], vocab: int, seed: int) -> int:
    """The second-best token after a prefix, in [0, vocab) and different from `next_token`."""
    step = 1 + digest(prefix, seed, "runner-up") % (vocab - 1)
    return (next_token(prefix, vocab, seed) + step) % vocab


def noise(prefix: Sequence[int] | NDArray[np.int32], seed: int, purpose: str, size: int) -> NDArray[np.float32]:
    """[size] standard normal noise, determined by the same inputs as `digest`; stands in for a hidden state."""
    return np.random.default_rng(digest(prefix, seed, purpose)).standard_normal(size, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Peaked:
    """Distribution with a best token, a runner-up, and equal mass on all others; its statistics have closed forms.

    `sharpness` in [0, 1) ranges from almost flat to almost certain.
    """

    best: int
    second: int
    vocab: int
    sharpness: float

    @property
    def top1(self) -> float:
        """Probability of the best token, at least 0.3."""
        flat = 1.0 / self.vocab
        return flat + (1.0 - flat) * (0.3 + 0.69 * self.sharpness)

    @property
    def top2(self) -> float:
        """Probability of the runner-up: 40 % of the mass outside the best token."""
        return 0.4 * (1.0 - self.top1)

    @property
    def rest(self) -> float:
        """Probability of each remaining token."""
        return 0.6 * (1.0 - self.top1) / (self.vocab - 2)

    @property
    def entropy(self) -> float:
        """Entropy in nats."""
        others = (self.vocab - 2) * self.rest * math.log(self.rest)
        return -(self.top1 * math.log(self.top1) + self.top2 * math.log(self.top2) + others)

    @property
    def logit_margin(self) -> float:
        """Logit of the best token minus that of the runner-up."""
        return math.log(self.top1 / self.top2)

    def gap(self, token: int) -> float:
        """Logit of the best token minus that of `token`; 0 for the best itself."""
        if token == self.best:
            return 0.0
        return self.logit_margin if token == self.second else math.log(self.top1 / self.rest)

    @property
    def logit_std(self) -> float:
        """Standard deviation of the logits over the vocabulary."""
        first, second = math.log(self.top1 / self.rest), math.log(self.top2 / self.rest)
        mean = (first + second) / self.vocab
        return math.sqrt((first * first + second * second) / self.vocab - mean * mean)

    def probs(self) -> NDArray[np.float32]:
        """[vocab] probabilities."""
        values = np.full(self.vocab, self.rest, dtype=np.float32)
        values[self.best], values[self.second] = self.top1, self.top2
        return values
