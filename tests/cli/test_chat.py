"""`testbed chat` on a terminal: answers, and how it ends."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from testbed.config import ServeConfig
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.runs.processes import base_station

PATIENCE_S = 120.0


class Terminal(NamedTuple):
    """A chat on a pseudo-terminal."""

    process: subprocess.Popen[bytes]
    fd: int

    def until(self, text: str, said: str = "") -> str:
        """Output up to a text, and what came with it."""
        end_s = time.monotonic() + PATIENCE_S
        while text not in said:
            assert time.monotonic() < end_s, said
            if select.select([self.fd], [], [], 0.2)[0]:
                said += os.read(self.fd, 65536).decode(errors="replace")
        return said


@pytest.fixture(scope="module")
def bs() -> Iterator[str]:
    config = ServeConfig(engine="llama", model=target_for("llama", None), bind="tcp://127.0.0.1:*", threads=1)
    with base_station(config) as ready:
        yield ready["bind"]


@pytest.fixture
def chat(bs: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed", "chat", "--bs", bs], stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_an_answer_and_its_status(chat: Terminal) -> None:
    assert "target.gguf; /new begins anew, /quit ends" in chat.until("> ")
    os.write(chat.fd, b"Tom has 3 boxes with 4 pens each. How many pens has he?\n")
    said = chat.until(" a round")
    assert " rounds · " in said and " drafted tokens accepted · " in said and "\x1b[1;4;35m" in said
    os.write(chat.fd, b"/quit\n")
    assert chat.process.wait(PATIENCE_S) == 0


def test_ctrl_c_at_the_prompt_ends_it_and_restores_the_terminal(chat: Terminal) -> None:
    chat.until("> ")
    time.sleep(0.2)  # the line editor has changed the terminal by then
    chat.process.send_signal(signal.SIGINT)
    said = chat.until("testbed: interrupted")
    assert chat.process.wait(PATIENCE_S) == 130 and "Traceback" not in said
    assert termios.tcgetattr(chat.fd)[3] & termios.ECHO and termios.tcgetattr(chat.fd)[3] & termios.ICANON
