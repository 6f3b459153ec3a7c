"""The process of an order says anything, and none of it ends the agent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.experiments.agent import child
from testbed.experiments.agent.child import MOST_CHARACTERS, MOST_LINE_BYTES, run_child


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
