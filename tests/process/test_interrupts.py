"""Signals that wait for the end of a block."""

from __future__ import annotations

import signal
import threading

import pytest

from testbed.process.interrupts import held_back


def test_ctrl_c_comes_after_the_block_and_only_then() -> None:
    before = signal.getsignal(signal.SIGINT)
    done = []

    def work() -> None:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_signal_nothing_happens_and_errors_pass() -> None:
    with held_back():
        pass
    with pytest.raises(ValueError, match="mine"), held_back():
        raise ValueError("mine")


def test_other_threads_may_use_it() -> None:
    passed = threading.Event()

    def work() -> None:
        with held_back():
            passed.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(5)
    assert passed.is_set()
