"""Sampling from a model's distribution, and what speculative decoding by rejection sampling needs beside it.

Of Leviathan et al. (2023): a token x drawn from q is kept with probability min(1, p(x) / q(x)); where it is not,
another one is drawn from the residual, norm(max(0, p − q)). The output is then distributed as p, *whatever q is*, as
long as q is what x was drawn from. Hence what travels:

- **q** travels as 16-bit counts of 1/65535 that add up to 65535 (`quantise`). The drafter draws from the counts, not
  from what they were rounded from, so that both sides hold the same q to the last bit; rounding costs acceptance, never
  losslessness.
- **p** cannot be so coarse, for its rounding reaches the output. It travels as half-precision numbers, scaled so that
  small probabilities keep their precision (`pack_target`), and what judges a window is the rounded p, so that the
  output is distributed as exactly that: within `TARGET_TV` of p in total variation.

Under coupled sampling (`Coupling`) no distribution travels: both sides add the same noise before the argmax, and a
drafted token is accepted where it equals the target's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput, ProtocolError
from testbed.intervals import independent_seed
from testbed.noise import exponentials

Probs = NDArray[np.float64]
"""[V], not negative, adding up to 1."""
Counts = NDArray[np.uint16]

ONE = 2**16 - 1
"""Counts of a quantised distribution: the largest 16-bit number, so that a certain token has a count too."""
FULL_BITS, *_ = Q_BITS = (16, 8, 4)
"""Bits of a count: 2^b − 1 divides `ONE`, so that coarser counts are 16-bit counts, too."""
MOST_TOP = 256
"""Ids of a sparse distribution, at most."""
TARGET_SCALE = 2.0**15
"""Factor that makes half precision exact to a relative 2⁻¹¹ from 1 down to 2⁻²⁹."""
TARGET_TV = 2.0**-11 + 2.0**-20
"""Bound on the total variation between p and what `read_target` makes of it: each entry moves by at most 2⁻¹¹ of
itself, or by 2⁻⁴⁰ below 2⁻²⁹, which 2²⁰ entries add up to 2⁻²⁰; renormalising at most doubles the half of their sum."""
_SUM_TOLERANCE = 2.0**-10
NARROWER, LEAST = 8.0, 1e-12
"""Factor between the bounds above which `top_p` looks for enough values, and the last bound but 0."""
_DRAFT, _ACCEPT, _REPLACE = range(3)


class Sampling(msgspec.Struct, frozen=True):
    """Parameters of sampling, applied in order: temperature, then the `top_k` most likely tokens, then `top_p`."""

    temperature: float = 1.0
    """0 takes the most likely token."""
    top_k: int = 0
    """Tokens kept; 0: all."""
    top_p: float = 1.0
    """Nucleus sampling: keep the smallest set of tokens with at least this total probability."""
    coupled: bool = False
    """Whether tokens are chosen with noise that UE and BS share: see `Coupling`."""
    block: bool = False
    """Whether the drafted tokens of a window are accepted jointly: see `rejection_sampling.accept_block`."""
    q_top: int = 0
    """Most likely ids that the drafter draws from, where its distributions are uploaded; 0: all."""
    q_bits: int = FULL_BITS
    """Bits of an uploaded draft probability: see `protocols.quantise`."""

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            BadInput: a value out of its range.
        """
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise BadInput(f"temperature must be 0 (greedy) or a positive number, not {self.temperature:g}")
        if self.top_k < 0:
            raise BadInput(f"top-k must be 1 or more, or 0 for all tokens, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top-p must lie above 0 and be at most 1, not {self.top_p:g}")
        if not 0 <= self.q_top <= MOST_TOP:
            raise BadInput(f"q-top must lie in 0..{MOST_TOP}, not {self.q_top}")
        if self.q_bits not in Q_BITS:
            raise BadInput(f"probabilities travel at {', '.join(map(str, Q_BITS))} bits, not {self.q_bits}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @property
    def packed(self) -> bool:
        """Whether draft distributions travel at fewer bits than they have."""
        return self.q_top > 0 or self.q_bits < FULL_BITS

    @property
    def independent(self) -> bool:
        """Whether tokens are drawn with random numbers of the target's own."""
        return not self.greedy and not self.coupled

    def coupling(self, seed: int) -> Coupling | None:
        """The coupling of a request's tokens; None: they are not coupled."""
        return Coupling(self, seed) if self.coupled and not self.greedy else None


GREEDY = Sampling(temperature=0.0)


class Draws:
    """Random numbers of one round: pure functions of (seed, round, position), so that repeated messages and passes give
    the same tokens. UE and BS share the seed; each number is used once.
    """

    def __init__(self, seed: int, round_: int) -> None:
        """`seed`: seed of the request, in [0, 2⁶⁴)."""
        self._seed, self._round = seed, round_

    def draft(self, position: int) -> float:
        """Number in [0, 1) that draws the drafted token at a position."""
        return self._uniform(_DRAFT, position)

    def accept(self, position: int) -> float:
        """Number in [0, 1) that decides whether the drafted token at a position is accepted."""
        return self._uniform(_ACCEPT, position)

    def replace(self, position: int) -> float:
        """Number in [0, 1) that draws the correction at a position, or the bonus token after the window."""
        return self._uniform(_REPLACE, position)

    def _uniform(self, purpose: int, position: int) -> float:
        return float(np.random.default_rng((self._seed, purpose, self._round, position)).random())


class Kept(NamedTuple):
    """Accepted tokens of a window, and what follows them."""

    accepted: int
    """Number of accepted drafted tokens."""
    token: int | None
    """Correction or bonus token; None where the UE draws it."""
    target: NDArray[np.float16] | None = None
    """[V] distribution from which the UE draws it: see `pack_target`."""


@dataclass(frozen=True, slots=True)
class Coupling:
    """Coupled sampling: the token at position t of a sequence is argmax_v ln p(v) + G(v), where the Gumbel noise G is a
    function of seed, t and v (`testbed.noise`). It is distributed as p, and is the same whoever computes it from the
    same p (Daliri et al., arXiv 2408.07978). Computed as argmax_v p(v) / E(v) with G = −ln E; equal ones rank by id.
    """

    sampling: Sampling
    seed: int
    """In [0, 2⁶⁴)."""

    def __call__(self, probs: NDArray[np.float32], position: int) -> int:
        """The token of a drafter with these probabilities [V] at temperature 1."""
        with np.errstate(divide="ignore"):
            warped = warp(np.log(probs), self.sampling)
        return int((warped / self.times(position, len(warped))).argmax())

    def times(self, position: int, size: int) -> NDArray[np.float64]:
        """E(v) [size]."""
        return exponentials(self.seed, position, size)


def request_seed(seed: int, method: str, request: int) -> int:
    """Seed of one request of a run, in [0, 2⁶³), independent of session numbers and different for each method."""
    return independent_seed(seed, method, request)


def warp(logits: NDArray[Any], sampling: Sampling) -> Probs:
    """Logits or log-probabilities [V] to the probabilities that are sampled from; equal ones rank by id.

    Raises:
        ValueError: a logit is NaN, or none is finite.
    """
    values = np.asarray(logits, np.float64)
    best = int(values.argmax())
    if not math.isfinite(values[best]):
        raise ValueError("logits are not numbers")
    if sampling.greedy:
        return one_hot(best, len(values))
    with np.errstate(over="ignore"):  # at a tiny temperature all but the best are infinitely far away
        weights = np.exp((values - values[best]) / sampling.temperature)
    if 0 < sampling.top_k < len(weights):
        weights[~_largest(weights, sampling.top_k)] = 0.0
    probs: Probs = weights / weights.sum()
    if sampling.top_p < 1:
        probs[~_nucleus(probs, sampling.top_p)] = 0.0
        probs /= probs.sum()
    return probs


def _nucleus(probs: Probs, mass: float) -> NDArray[np.bool_]:
    """Mask of the fewest largest values that add up to `mass`, summed in falling order; equal ones rank by index. Only
    values above a bound that leaves enough of them are sorted.
    """
    least = float(probs.max())
    while least > LEAST and probs[probs > least].sum() < mass:
        least /= NARROWER
    for bound in (least, 0.0) if least > LEAST else (0.0,):
        ranked = np.sort(probs[probs > bound])[::-1]
        sums = np.cumsum(ranked)
        if sums[-1] >= mass:  # the sum above is rounded in another way
            break
    count = 1 + int(np.searchsorted(sums[:-1], mass))
    return _from(probs, float(ranked[count - 1]), count)


def _largest(values: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """Mask of the `count` largest values; equal ones rank by index."""
    return _from(values, float(np.partition(values, len(values) - count)[len(values) - count]), count)


def _from(values: NDArray[np.float64], least: float, count: int) -> NDArray[np.bool_]:
    """Mask of the `count` largest values, the last of which is `least`; equal ones rank by index."""
    found: NDArray[np.bool_] = values > least
    found[np.flatnonzero(values == least)[: count - int(found.sum())]] = True
    return found


def one_hot(token: int, size: int) -> Probs:
    """Distribution [size] with all probability on one token."""
    probs = np.zeros(size)
    probs[token] = 1.0
    return probs


def draw(weights: NDArray[Any], u: float) -> int:
    """The token where the running sum of `weights` [V] passes `u` in [0, 1) of their total; its weight is never 0."""
    running = np.cumsum(weights, dtype=np.float64)
    last = int(np.searchsorted(running, running[-1]))  # u · total may round up to the total itself
    return min(int(np.searchsorted(running, u * running[-1], side="right")), last)


def accept(p: float, q: float, u: float) -> bool:
    """Whether a token drawn from q is accepted under p, with probability min(1, p / q); `u` is uniform in [0, 1)."""
    return u * q < p


def residual(p: Probs, q: Probs) -> Probs:
    """norm(max(0, p − q)), from which the correction is drawn; p where the residual is 0."""
    left: Probs = np.maximum(p - q, 0.0)
    total = left.sum()
    return left / total if total > 0 else p


def quantise(probs: Probs, top: int = 0, bits: int = FULL_BITS) -> Counts:
    """Probabilities [V] to counts that add up to `ONE`, by largest remainder (equal ones by id); 0 stays 0.

    Args:
        top: number of the most likely ids that are left; 0: all.
        bits: counts are multiples of `unit(bits)`.
    """
    if 0 < top < len(probs):
        probs = np.where(_largest(probs, top), probs, 0.0)
    one = 2**bits - 1
    scaled = probs * (one / probs.sum())
    counts = np.floor(scaled)
    short = one - int(counts.sum())
    if short > 0:
        counts[_largest(scaled - counts, short)] += 1
    rounded: Counts = counts.astype(np.uint16) * np.uint16(unit(bits))
    return rounded


def unit(bits: int) -> int:
    """What one count of a distribution at `bits` bits stands for, of `ONE`."""
    one: int = ONE // (2**bits - 1)
    return one


def probabilities(counts: Counts) -> Probs:
    """Probabilities that counts stand for: one row, all rows, or single entries."""
    probs: Probs = counts / np.float64(ONE)
    return probs


def pack_target(p: Probs) -> NDArray[np.float16]:
    """The target's probabilities [V] for the wire: half precision, times `TARGET_SCALE`."""
    return (p * TARGET_SCALE).astype(np.float16)


def read_target(packed: NDArray[Any], vocab_size: int) -> Probs:
    """Probabilities [V] from `pack_target`, normalised. Sums of scaled halves are exact, so both sides get the same.

    Raises:
        ProtocolError: not f2 [vocab_size], not finite, negative, or its sum is not near 1.
    """
    if packed.dtype != np.float16 or packed.shape != (vocab_size,):
        raise ProtocolError(f"target must be f2 [{vocab_size}], not {packed.dtype} {list(packed.shape)}")
    values = packed.astype(np.float64)
    total = float(values.sum())
    if not (np.isfinite(values).all() and values.min() >= 0 and abs(total / TARGET_SCALE - 1) <= _SUM_TOLERANCE):
        raise ProtocolError("the target's probabilities must be finite, not negative, and add up to 1")
    return values / total
