"""Logging of warnings to stderr: plain lines, or one JSON document per line with `TESTBED_LOG=json`."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping

from testbed.errors import BadInput, no_descriptor
from testbed.process.streams import write_stderr

VARIABLE = "TESTBED_LOG"
KINDS = ("text", "json")
MOST_TEXTS = 1000
"""Different lines of asyncio that are counted."""
NOISE = ("torch._library.triton",)
"""Loggers of libraries whose warnings concern nobody here."""


def configure(environment: Mapping[str, str] = os.environ) -> None:
    """Set up logging in the format that `TESTBED_LOG` selects; child processes inherit the variable.

    Raises:
        BadInput: unknown format.
    """
    kind = environment.get(VARIABLE, KINDS[0])
    if kind not in KINDS:
        raise BadInput(f"{VARIABLE} is {' or '.join(KINDS)}, not {kind!r}")
    for name in NOISE:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("testbed", "asyncio"):
        logging.getLogger(name).handlers[:] = [_Stderr(_Json() if kind == "json" else _Text())]
    logging.getLogger("asyncio").filters[:] = [_Sparse()]


class _Sparse(logging.Filter):
    """Lets the 1st, 2nd, 4th, 8th … record of the same first line pass, so that peers cannot fill the log."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record passes; repeated ones tell their number, and a lack of descriptors no traceback."""
        text, _, _ = record.getMessage().partition("\n")
        self._counts[text] += 1
        count = self._counts[text]
        if len(self._counts) > MOST_TEXTS:
            self._counts.clear()
        if count & (count - 1):
            return False
        if record.exc_info and no_descriptor(record.exc_info[1]):
            record.msg, record.args, record.exc_info = f"{text}: {record.exc_info[1]}", (), None
        if count > 1:
            record.msg, record.args = f"{record.getMessage()} ({count} times so far)", ()
        return True


class _Stderr(logging.Handler):
    """Writes to the current `sys.stderr`, which may be replaced after set-up."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record with a single call."""
        try:
            write_stderr(self.format(record) + "\n")
        except (OSError, ValueError):  # stderr is closed
            return


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("testbed: %(message)s")


class _Json(logging.Formatter):
    """Fields: time (UTC), level, logger, pid, message, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        time_s, milliseconds = divmod(round(1e3 * record.created), 1000)
        document = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(time_s))}.{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)
