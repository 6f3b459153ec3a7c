"""Warnings of processes: lines on stderr, or JSON documents for a journal."""

from __future__ import annotations

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
    logger = logging.getLogger("testbed")
    before = logger.handlers[:]
    yield
    logger.handlers[:] = before


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
