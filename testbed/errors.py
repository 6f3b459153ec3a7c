"""Errors of the testbed.

TestbedError
├── BadInput          invalid input: one line on stderr, exit code 2
│   └── ConfigError   invalid configuration
├── ModelError        unusable model file (missing, other vocabulary, cache cannot be rolled back)
├── ProtocolError     a peer violated the wire protocol
├── LinkError         the peer cannot be reached or stopped responding
│   └── LinkTimeout   no answer before the timeout
├── AgentError        an agent answers wrongly, refuses an order, or could not carry it out
├── AdmissionError    the BS cannot guarantee the requested token speed
├── EngineError       a verification pass failed
├── SensorError       a power sensor exists but cannot be read
└── GateError         an output differs from the target's own (losslessness gate)
"""

from __future__ import annotations

import errno


class TestbedError(Exception):
    """Base class of the testbed's errors."""

    __test__ = False


class BadInput(TestbedError):
    """Invalid input; the message says what would be valid."""


class ConfigError(BadInput):
    """A configuration with unknown keys or inconsistent values."""


class ModelError(BadInput):
    """A model file that cannot be used for the requested purpose."""


class ProtocolError(TestbedError):
    """A peer violated the wire protocol."""


class LinkError(TestbedError):
    """The peer cannot be reached or stopped responding."""


class LinkTimeout(LinkError):
    """No answer before the timeout."""


class AgentError(TestbedError):
    """An agent answers wrongly, refuses an order, or could not carry it out."""


class AdmissionError(TestbedError):
    """The BS cannot guarantee the requested token speed."""


class EngineError(TestbedError):
    """A verification pass failed."""


class SensorError(TestbedError):
    """A power sensor exists but cannot be read."""


class GateError(TestbedError):
    """An output differs from the target's own greedy output."""


def no_descriptor(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is that no file descriptor was free."""
    while error is not None and not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
        error = error.__cause__
    return error is not None


def used_up(error: Exception) -> bool:
    """Whether an error says that descriptors, processes, threads or memory are used up, which may pass."""
    if isinstance(error, OSError):
        return no_descriptor(error) or error.errno in (errno.EAGAIN, errno.ENOMEM)
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)
