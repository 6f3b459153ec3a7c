"""A target language without a model: the next token is a pure function of the prefix.

Both sides import it: the synthetic drafter (UE) agrees with the synthetic engine (BS) as often as it is told to, and a
run with hundreds of sessions needs no model at all.
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
"""Tokens at the end of a prefix that, with its length, decide what comes next."""
MIN_VOCAB = 4
"""Fewest tokens that leave room for a best, a second best and the rest."""
_UNIT = 2.0**-64


def digest(prefix: Sequence[int] | NDArray[np.int32], seed: int, purpose: str) -> int:
    """64 bits that depend on the length of a prefix, on its last `WINDOW` tokens, on a seed and on a purpose."""
    tail = [int(token) for token in prefix[-WINDOW:]]
    packed = struct.pack(f"<qq{len(tail)}i", seed, len(prefix), *tail)
    return int.from_bytes(blake2b(packed, digest_size=8, person=purpose.encode()).digest(), "little")


def uniform(prefix: Sequence[int] | NDArray[np.int32], seed: int, purpose: str) -> float:
    """A number in [0, 1) with the dependences of `digest`."""
    return (digest(prefix, seed, purpose) >> 11) * _UNIT * 2048.0


def next_token(prefix: Sequence[int] | NDArray[np.int32], vocab: int, seed: int) -> int:
    """The token that follows a prefix, in [0, vocab)."""
    return digest(prefix, seed, "next") % vocab


def runner_up(prefix: Sequence[int] | NDArray[np.int32], vocab: int, seed: int) -> int:
    """The second best token after a prefix, in [0, vocab) and never `next_token`'s."""
    step = 1 + digest(prefix, seed, "runner-up") % (vocab - 1)
    return (next_token(prefix, vocab, seed) + step) % vocab


def noise(prefix: Sequence[int] | NDArray[np.int32], seed: int, purpose: str, size: int) -> NDArray[np.float32]:
    """[size] standard normal noise with the dependences of `digest`: a stand-in for a hidden state."""
    return np.random.default_rng(digest(prefix, seed, purpose)).standard_normal(size, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Peaked:
    """A distribution with a best token, a second best one, and the rest alike: its statistics have closed forms.

    `sharpness` in [0, 1) goes from almost flat to almost certain.
    """

    best: int
    second: int
    vocab: int
    sharpness: float

    @property
    def top1(self) -> float:
        """Probability of the best token: from 0.3 upwards."""
        flat = 1.0 / self.vocab
        return flat + (1.0 - flat) * (0.3 + 0.69 * self.sharpness)

    @property
    def top2(self) -> float:
        """Probability of the second best token: 40 % of what the best one leaves."""
        return 0.4 * (1.0 - self.top1)

    @property
    def rest(self) -> float:
        """Probability of each of the other tokens."""
        return 0.6 * (1.0 - self.top1) / (self.vocab - 2)

    @property
    def entropy(self) -> float:
        """Entropy in nats."""
        others = (self.vocab - 2) * self.rest * math.log(self.rest)
        return -(self.top1 * math.log(self.top1) + self.top2 * math.log(self.top2) + others)

    @property
    def logit_margin(self) -> float:
        """Logit of the best token minus that of the second best."""
        return math.log(self.top1 / self.top2)

    def gap(self, token: int) -> float:
        """Logit of the best token minus that of another; 0 for the best itself."""
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
        """[vocab] the whole distribution."""
        values = np.full(self.vocab, self.rest, dtype=np.float32)
        values[self.best], values[self.second] = self.top1, self.top2
        return values
