"""Random numbers that both ends of a link share: functions of (seed, position, index), the same bits on every platform.

Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; numpy's, whose raw stream is
fixed) with key (seed, 0) and counter (⌊i/4⌋ + 1, position, 0, 0) gives 64 bits for index i, in lane i mod 4. The upper
52 of them, k, are the exact number u = (k + ½)·2⁻⁵² in (0, 1), and E = −ln u is exponential with mean 1; −ln E is a
Gumbel variable.

Logarithms of C libraries differ in the last bit. `negative_log` therefore consists of IEEE 754 additions,
multiplications and divisions in double precision alone, in a fixed order: with u = m·2ᵉ and m in [√½, √2),
−ln u = −2·s·(1 + s²/3 + … + s²⁰/21) − e·ln 2 for s = (m − 1)/(m + 1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]

SQRT_HALF = 0.7071067811865476
LN_2 = 0.6931471805599453
TERMS = 11
"""Terms of the series: the next one is below 2⁻⁵³ of the first."""
BLOCK = 2**13
"""Numbers computed at once, a multiple of four: their intermediate results stay in the processor's cache."""


def exponentials(seed: int, position: int, size: int) -> Reals:
    """[size] independent exponential variables with mean 1.

    Args:
        seed: in [0, 2⁶⁴).
        position: in [0, 2⁶⁴).
    """
    source, found = np.random.Philox(key=seed, counter=position << 64), np.empty(size)
    for start in range(0, size, BLOCK):
        part = found[start : start + BLOCK]
        part[:] = negative_log(((source.random_raw(len(part)) >> np.uint64(12)) + 0.5) * 2.0**-52)
    return found


def negative_log(u: Reals) -> Reals:
    """−ln u of numbers in (0, 1), to a few units in the last place."""
    mantissa, exponent = np.frexp(u)
    low = mantissa < SQRT_HALF
    mantissa += mantissa * low
    exponent -= low
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.full_like(square, 1.0 / (2 * TERMS - 1))
    for denominator in range(2 * TERMS - 3, 0, -2):
        series *= square
        series += 1.0 / denominator
    result: Reals = -2.0 * ratio * series - exponent * LN_2
    return result
