"""Errors that nothing expects: one line, and a traceback for those who ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.cli import main as cli
from testbed.cli.main import TRACEBACK, main


def broken(*_: Any, **__: Any) -> Any:
    raise TypeError("unhashable\ntype")


def test_one_line_says_what_and_where(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "command_line", broken)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("testbed: unexpected TypeError at main.py:") and said.count("\n") == 1
    assert "unhashable type (TESTBED_TRACEBACK=1 shows the traceback)" in said
    monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(TypeError):
        main(["doctor"])
