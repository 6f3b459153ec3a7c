"""Options that `bs serve --monitor` refuses in one line before it loads an engine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from testbed.cli.main import main

SERVE = ["bs", "serve", "--engine", "synthetic", "--bind", "tcp://127.0.0.1:*"]
CASES = [
    (["--monitor", "nonsense"], "HOST:PORT"),
    (["--monitor", "::1:9100"], "in brackets"),
    (["--monitor", "0.0.0.0:0"], "give --monitor-token-file FILE"),
    (["--monitor", "nowhere.invalid:1"], "nowhere.invalid"),
    (["--monitor", "0", "--monitor-token-file", "no/key"], "cannot be read as a key"),
    (["--monitor-text"], "goes with --monitor"),
    (["--monitor-token-file", "key"], "goes with --monitor"),
]


def refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*SERVE, *options]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("options", "says"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_input(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(options, capsys)


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = refused(["--monitor", str(port)], capsys)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port" in line
