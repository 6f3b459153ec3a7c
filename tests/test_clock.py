"""Waiting with an end, and times of processes that follow each other."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from testbed.clock import UnixZero, within


async def test_a_result_in_time_comes_back() -> None:
    assert await within(1.0, asyncio.sleep(0, "here")) == "here"


async def test_what_it_raises_comes_out() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await within(1.0, fail())


async def test_too_late_is_a_timeout_and_cancels_the_wait() -> None:
    late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(asyncio.TimeoutError):
        await within(0.01, late)
    assert late.cancelled()


async def test_no_time_at_all_still_takes_what_is_there() -> None:
    there: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    there.set_result(1)
    assert await within(0.0, there) == 1


@pytest.mark.parametrize("failing", [False, True])
async def test_a_cancellation_that_comes_with_the_result_is_not_lost(failing: bool) -> None:
    there: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(within(1.0, there))
    await asyncio.sleep(0)
    if failing:
        there.set_exception(KeyError("x"))
    else:
        there.set_result(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_times_go_on_after_those_of_a_part_before_the_date_went_back() -> None:
    zero_s = UnixZero()
    date_s = zero_s()
    assert abs(date_s + time.perf_counter() - time.time()) < 1
    for last_s in (time.time() - 5, -math.inf):
        assert zero_s.go_on_after(last_s) == 0
        assert zero_s() == date_s and zero_s.later_s == 0
    zero_s.go_on_after(time.time() + 100)
    assert zero_s.later_s == pytest.approx(100, abs=2) and zero_s() == date_s + zero_s.later_s
