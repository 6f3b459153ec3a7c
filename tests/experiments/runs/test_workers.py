"""Worker processes of a command, and how they end."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.queues
import os
import signal
import threading
import time
from concurrent import futures

import pytest

from testbed.errors import EngineError
from testbed.experiments.runs import processes
from testbed.experiments.runs.workers import pool_of


def test_a_stopped_process_does_not_hold_up_an_interrupted_command() -> None:
    """SIGTERM does not reach it: the command waited for it, and a second interrupt had no effect."""
    ended_s, others = list[float](), set(multiprocessing.active_children())

    def command() -> None:
        with pool_of(2, "killed") as pool:
            numbers = {future.result() for future in [pool.submit(os.getpid) for _ in range(4)]}
            os.kill(numbers.pop(), signal.SIGSTOP)
            ended_s.append(time.monotonic() + 20)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command()
    assert time.monotonic() < ended_s[0] and set(multiprocessing.active_children()) <= others


def test_a_process_that_stays_stopped_is_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sweep waited for it for ever, without a word."""
    monkeypatch.setattr(processes, "STOPPED_S", 1.0)
    before = set(threading.enumerate())

    def command() -> None:
        with pool_of(1, "killed") as pool:
            os.kill(pool.submit(os.getpid).result(), signal.SIGSTOP)
            pool.submit(os.getpid).result(timeout=30)

    with pytest.raises(EngineError, match="killed"):
        command()
    assert "has been stopped for 1 s; it is killed" in caplog.text
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pool_whose_own_thread_dies_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one thread too few was allowed, sweeps and searches for capacities waited for ever."""

    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(multiprocessing.queues.Queue, "_start_thread", none_left)

    def command() -> None:
        with pool_of(2, "killed") as pool:
            for future in futures.as_completed([pool.submit(os.getpid) for _ in range(5)], timeout=30):
                future.result()

    with pytest.raises(EngineError, match="has died; allow more processes"):
        command()


def test_processes_of_others_go_on() -> None:
    """Where a command was interrupted, all processes of `multiprocessing` in this one were ended."""
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()

    def command() -> None:
        with pool_of(1, "killed") as pool:
            pool.submit(os.getpid).result()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command()
    assert other.is_alive()
    other.kill()
    other.join()


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOENT, errno.ENOSPC])
def test_a_machine_without_semaphores_is_one_line(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /dev/shm there was a traceback; where it was full, the output was said to be."""

    def missing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("testbed.experiments.runs.workers.futures.ProcessPoolExecutor", missing)
    with pytest.raises(EngineError, match=f"/dev/shm on Linux: {os.strerror(number)}"), pool_of(2, "killed"):
        pass
