"""The process of an order says anything, and none of it ends the agent."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.experiments.agent import child
from testbed.experiments.agent.child import MOST_CHARACTERS, MOST_LINE_BYTES, run_child
from testbed.experiments.runs import processes


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("print('x' * 3_000_000); print('testbed: end')", "end"),
        ("print('first'); print('x' * 3_000_000 + 'end', end='')", ""),
        ("sys.stderr.buffer.write(b'\\xff' * 10 + b'\\n')", "\ufffd" * 9),
        ("print('y' * 5000)", "y" * 400),
        ("pass", ""),
    ],
)
async def test_lines_of_any_length(code: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"import sys; sys.stdout = sys.stderr; {code}; sys.stdout.flush(); sys.exit(3)"
    monkeypatch.setattr(child, "command", lambda *arguments: [sys.executable, "-c", *arguments])
    said: list[str] = []
    status, text = await run_child([script], said.append)
    assert status == 3 and text.startswith(last) and len(text) <= MOST_CHARACTERS < MOST_LINE_BYTES
    assert all(len(line) <= MOST_CHARACTERS + 4 for line in said)


async def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(child, "command", lambda *_: [str(tmp_path / "none")])
    assert await run_child([], print) == (1, "its process cannot be started: No such file or directory")


def test_an_error_is_a_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main._say("a\nb " + "x" * 3_000_000, 2) == 2
    line = capsys.readouterr().err
    assert line.startswith("testbed: a b xxx") and len(line) < 3000 and line.count("\n") == 1


async def test_the_process_of_an_order_is_ended_before_its_agent_where_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "command", lambda *arguments: [sys.executable, "-c", *arguments])
    code = "import sys, time; time.sleep(0.5); print(open('/proc/self/oom_score_adj').read(), file=sys.stderr)"
    assert await run_child([code], lambda _: None) == (0, "500")


async def test_a_process_that_stays_stopped_ends_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept the agent from all further orders."""
    monkeypatch.setattr(child, "command", lambda *arguments: [sys.executable, "-c", *arguments])
    monkeypatch.setattr(processes, "STOPPED_S", 0.5)
    code = "import os, signal, sys; print('on', file=sys.stderr); os.kill(os.getpid(), signal.SIGSTOP)"
    monkeypatch.setattr(processes, "STOP_S", 0.5)
    said: list[str] = []
    status, text = await run_child([code], said.append)
    assert (status, said) == (1, ["    on"])
    assert re.fullmatch(r"its process \(pid \d+\) has been stopped for 0.5 s", text)


async def test_a_process_has_ended_however_often_its_order_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second Cancel left the process behind, and the next order began beside it."""
    monkeypatch.setattr(child, "command", lambda *arguments: [sys.executable, "-c", *arguments])
    monkeypatch.setattr(processes, "STOP_S", 0.5)
    code = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(os.getpid(), file=sys.stderr); time.sleep(60)"
    )
    said: list[str] = []
    order = asyncio.create_task(run_child([code], said.append))
    while not said:
        await asyncio.sleep(0.01)
    for _ in range(3):
        order.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await order
    assert not Path(f"/proc/{int(said[0])}").exists()
