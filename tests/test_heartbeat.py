"""The heartbeat of tests sees every stall of an event loop, and takes no lack of CPUs for one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.heartbeat import Heartbeat, Stall

WORK_S = 0.15


def busy(seconds: float = WORK_S) -> None:
    """Compute for some CPU time of the calling thread."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


async def measured(work: Callable[[], object]) -> Stall:
    """Longest stalls of a loop while it does something."""
    heart = Heartbeat()
    beating = asyncio.create_task(heart.beat())
    await asyncio.sleep(0.05)
    work()
    await asyncio.sleep(0.05)
    beating.cancel()
    assert heart.beats > 1
    return heart.stall


async def test_what_the_loop_computes_itself_counts_by_each_clock() -> None:
    stall = await measured(busy)
    assert min(stall) > 0.9 * WORK_S


async def test_waits_of_the_loop_for_anything_but_a_cpu_count() -> None:
    stall = await measured(lambda: time.sleep(WORK_S))
    assert stall.cpu_s < WORK_S and stall.running_s > 0.6 * WORK_S

    def wait() -> None:
        lock = threading.Lock()
        lock.acquire()
        threading.Timer(WORK_S, lock.release).start()
        lock.acquire()

    assert (await measured(wait)).running_s > 0.6 * WORK_S


async def test_waits_for_a_thread_that_computes_count() -> None:
    def beside() -> None:
        other = threading.Thread(target=busy)
        other.start()
        other.join()

    assert (await measured(beside)).running_s > 0.6 * WORK_S


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists() or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores, and Linux's account of waits",
)
async def test_a_thread_that_has_no_cpu_is_no_stall() -> None:
    """The loop waits for a thread of the lowest priority, on a core that another process uses up."""
    core = min(os.sched_getaffinity(0))
    program = f"import os; os.sched_setaffinity(0, [{core}]); print(flush=True)\nwhile True: pass"
    hog = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    done, over = threading.Event(), threading.Event()

    def starved() -> None:
        os.sched_setaffinity(0, [core])
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        end_s = time.perf_counter() + 4 * WORK_S
        while time.perf_counter() < end_s:
            pass
        done.set()
        over.wait()

    def beside() -> None:
        threading.Thread(target=starved).start()
        done.wait()

    try:
        assert hog.stdout and hog.stdout.readline()
        stall = await measured(beside)
    finally:
        over.set()
        hog.kill()
        hog.communicate()
    assert stall.wall_s > 3 * WORK_S and stall.running_s < stall.wall_s / 2


async def test_what_the_test_computes_in_the_loop_can_be_left_out() -> None:
    heart = Heartbeat()
    beating = asyncio.create_task(heart.beat())
    await asyncio.sleep(0.05)
    with heart.apart():
        busy()
    await asyncio.sleep(0.05)
    before = heart.stall
    with heart.apart():
        busy()
    busy()
    await asyncio.sleep(0.05)
    beating.cancel()
    assert before.cpu_s < 0.5 * WORK_S
    assert 0.9 * WORK_S < heart.stall.cpu_s < 1.5 * WORK_S
