"""Warnings of processes: lines on stderr, or JSON documents for a journal."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from testbed.errors import BadInput
from testbed.process.logs import VARIABLE, configure

LOG = logging.getLogger("testbed.tests")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("testbed", "asyncio")]
    before = [(logger.handlers[:], logger.filters[:]) for logger in loggers]
    yield
    for logger, (handlers, filters) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.filters[:] = handlers, filters


def warn() -> None:
    LOG.info("nobody reads this")
    LOG.warning("%d × “€”\nand more", 3)
    try:
        raise ValueError("broken")
    except ValueError:
        LOG.exception("it failed")


def test_people_read_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure({})
    configure({})  # once is enough
    LOG.info("nobody reads this")
    LOG.warning("%d is odd", 3)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "testbed: 3 is odd\n")


def test_journals_read_a_document_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure({VARIABLE: "json"})
    warn()
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("warning", "testbed.tests", "3 × “€”\nand more")
    assert first["pid"] == os.getpid() and "exception" not in first
    age = datetime.now(timezone.utc) - datetime.fromisoformat(first["time"].replace("Z", "+00:00"))
    assert timedelta(seconds=-1) < age < timedelta(minutes=5)
    assert second["level"] == "error" and "ValueError: broken" in second["exception"]


def test_a_kind_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match="TESTBED_LOG is text or json, not 'xml'"):
        configure({VARIABLE: "xml"})
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "--version"],
        env={**os.environ, VARIABLE: "xml"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "testbed: TESTBED_LOG is text or json, not 'xml'\n"


def test_asyncio_does_not_repeat_itself_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    """A relay without free descriptors wrote 650 kB of tracebacks a minute."""
    configure({})
    logger = logging.getLogger("asyncio")
    full = OSError(errno.EMFILE, "Too many open files")
    for number in range(1000):
        logger.error("socket.accept() out of system resource\nsocket: fd=%d", number % 3, exc_info=full)
        logger.warning("socket.send() raised exception.")
    lines = capsys.readouterr().err.splitlines()
    accepted = "testbed: socket.accept() out of system resource: [Errno 24] Too many open files"
    assert lines[:4] == [
        accepted,
        "testbed: socket.send() raised exception.",
        f"{accepted} (2 times so far)",
        "testbed: socket.send() raised exception. (2 times so far)",
    ]
    assert len(lines) == 20 and lines[-1].endswith("(512 times so far)")
