"""Signals that wait for the end of a block."""

from __future__ import annotations

import signal
import subprocess
import sys
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


STARTED = """
import runpy, signal, sys, types
main = types.ModuleType("testbed.cli.main")
main.run = lambda: print(signal.getsignal(signal.SIGINT).name)
sys.modules["testbed.cli.main"] = main
runpy.run_module("testbed", run_name="__main__")
"""


def test_ctrl_c_while_modules_are_loaded_prints_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "SIG_DFL\n"


TERMINATED = """
import os, signal, sys
from testbed.cli import main
def work():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        print("all of it")
main.main = work
main.run()
"""


def test_a_second_sigterm_does_not_break_off_what_the_first_began() -> None:
    done = subprocess.run([sys.executable, "-c", TERMINATED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "all of it\n", "")
