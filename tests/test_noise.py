"""Shared noise, against Philox written out from the paper, exact logarithms, torch, and tests of independence."""

from __future__ import annotations

import decimal
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from testbed.noise import BLOCK, LN_2, SQRT_HALF, TERMS, exponentials, negative_log

WORD = 2**64 - 1
SEED = st.integers(0, WORD)
GOLDEN = {
    (0, 0): "0x1.1d86c5e83a55dp+2 0x1.6bb1d2b255786p+0 0x1.18e1f6da566fap+1 0x1.24d8bf620d4e4p-1 0x1.6075de333f089p-1",
    (7, 1): "0x1.151a49d4f33b0p-3 0x1.59dfacc1e6df6p-3 0x1.1b276fa91d445p+1 0x1.d11f15a284d3ep-2 0x1.aec0440f3a181p-1",
    (WORD, 4095): (
        "0x1.b012711d065cfp-2 0x1.0757b561c39bep-4 0x1.296cb6f3c4f32p+0 0x1.da63d4efbaae6p+0 0x1.35398ccefce58p-6"
    ),
}
"""First five numbers by seed and position, as `float.hex`."""


def philox(seed: int, counter: list[int]) -> list[int]:
    """Philox4x64-10 of Salmon et al. (2011), Section 3.3, in integers."""
    key, (a, b, c, d) = [seed, 0], counter
    for _ in range(10):
        left, right = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
        a, b, c, d = (right >> 64) ^ b ^ key[0], right & WORD, (left >> 64) ^ d ^ key[1], left & WORD
        key = [(key[0] + 0x9E3779B97F4A7C15) & WORD, (key[1] + 0xBB67AE8584CAA73B) & WORD]
    return [a, b, c, d]


def uniform(seed: int, position: int, index: int) -> tuple[int, int]:
    """Numerator and denominator of u as the module states it."""
    word = philox(seed, [index // 4 + 1, position, 0, 0])[index % 4]
    return 2 * (word >> 12) + 1, 2**53


# ---------------------------------------------------------------- the same bits everywhere


@pytest.mark.parametrize(("seed", "position"), GOLDEN)
def test_golden_values(seed: int, position: int) -> None:
    assert " ".join(x.hex() for x in exponentials(seed, position, 5).tolist()) == GOLDEN[seed, position]


@given(seed=SEED, position=st.integers(0, 2**32), size=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_numbers_are_logarithms_of_what_philox_says(seed: int, position: int, size: int) -> None:
    found = np.append(exponentials(seed, position, size), exponentials(seed, position, 2 * BLOCK + size)[-size:])
    with decimal.localcontext(decimal.Context(prec=40)):
        for index, number in zip([*range(size), *range(2 * BLOCK, 2 * BLOCK + size)], found.tolist(), strict=True):
            top, bottom = uniform(seed, position, index)
            exact = -(decimal.Decimal(top) / decimal.Decimal(bottom)).ln()
            assert abs(decimal.Decimal(number) - exact) <= exact * decimal.Decimal(2) ** -50


@given(seed=SEED, position=st.integers(0, 2**32), size=st.integers(2, 500))
@settings(max_examples=40, deadline=None)
def test_a_longer_row_begins_with_the_shorter_one(seed: int, position: int, size: int) -> None:
    size += BLOCK
    assert np.array_equal(exponentials(seed, position, size)[: size // 2], exponentials(seed, position, size // 2))


@given(seed=SEED, position=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_torch_computes_the_same_bits(seed: int, position: int) -> None:
    import torch

    words = np.random.Philox(key=seed, counter=position << 64).random_raw(3000)
    u = (torch.from_numpy((words >> np.uint64(12)).astype(np.int64)).double() + 0.5) * 2.0**-52
    mantissa, exponent = torch.frexp(u)
    low = mantissa < SQRT_HALF
    mantissa, exponent = torch.where(low, 2 * mantissa, mantissa), exponent - low.int()
    ratio = (mantissa - 1) / (mantissa + 1)
    square = ratio * ratio
    series = torch.full_like(square, 1 / (2 * TERMS - 1))
    for denominator in range(2 * TERMS - 3, 0, -2):
        series = torch.add(torch.mul(series, square), 1 / denominator)
    found = torch.sub(-2.0 * ratio * series, exponent.double() * LN_2)
    assert np.array_equal(found.numpy(), exponentials(seed, position, 3000))


def test_bits_do_not_depend_on_the_processors_instructions() -> None:
    """A process whose numpy uses its baseline instructions alone has the same bits; numpy's own logarithm differs."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    digest = (
        "import hashlib, testbed.noise as n; print(hashlib.sha256(n.exponentials(7, 1, 30000).tobytes()).hexdigest())"
    )
    without = " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))
    command = [sys.executable, "-W", "ignore", "-c", digest]
    done = subprocess.run(
        command, env={**os.environ, "NPY_DISABLE_CPU_FEATURES": without}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == hashlib.sha256(exponentials(7, 1, 30000).tobytes()).hexdigest()


def test_the_ends_of_the_range() -> None:
    ends = np.array([2.0**-53, 1 - 2.0**-53, 0.5, np.nextafter(SQRT_HALF, 0), SQRT_HALF])
    found = negative_log(ends)
    assert found.min() > 0
    np.testing.assert_allclose(found, -np.log(ends), rtol=1e-15)


# ---------------------------------------------------------------- independent


def test_numbers_are_exponential_within_a_row_and_at_one_index() -> None:
    assert stats.kstest(exponentials(3, 9, 20_000), "expon").pvalue > 1e-4
    across = [exponentials(3, position, 8)[5] for position in range(4000)]
    assert stats.kstest(across, "expon").pvalue > 1e-4
    sessions = [exponentials(seed, 40, 8)[5] for seed in range(4000)]
    assert stats.kstest(sessions, "expon").pvalue > 1e-4


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 10), (1, 11)), ((1, 10), (2, 10)), ((1, 10), (10, 1)), ((0, 0), (0, 1)), ((0, 1), (1, 0)), ((5, 2), (7, 2))],
)
def test_positions_and_sessions_are_independent(one: tuple[int, int], other: tuple[int, int]) -> None:
    """Chi-square of the table of both rows' quartiles, and no correlation."""
    size = 20_000
    first, second = (np.exp(-exponentials(*which, size)) for which in (one, other))
    table, *_ = np.histogram2d(first, second, bins=4, range=[[0, 1], [0, 1]])
    assert stats.chisquare(table.ravel()).pvalue > 1e-4
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(size)


def test_neighbours_in_a_row_are_independent() -> None:
    row = np.exp(-exponentials(11, 4, 40_001))
    for lag in (1, 2, 4):
        table, *_ = np.histogram2d(row[:-lag], row[lag:], bins=4, range=[[0, 1], [0, 1]])
        assert stats.chisquare(table.ravel()).pvalue > 1e-4
