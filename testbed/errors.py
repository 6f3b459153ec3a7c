"""Errors of the testbed.

TestbedError
├── BadInput          the caller can mend it: one line, exit code 2
│   └── ConfigError   a configuration that does not hold together
├── ModelError        a model file that cannot be used (missing, other vocabulary, cache cannot be rolled back)
├── ProtocolError     a peer broke the wire protocol
├── LinkError         the other side cannot be reached, or went silent
│   └── LinkTimeout   no answer within the time allowed
├── AdmissionError    the BS cannot promise the token speed that was asked for
├── EngineError       a verification pass failed
├── SensorError       a power sensor that is there cannot be read
└── GateError         an output differs from the target's own: the losslessness gate
"""

from __future__ import annotations


class TestbedError(Exception):
    """Base of every error that the testbed raises on purpose."""

    __test__ = False


class BadInput(TestbedError):
    """The caller gave something that cannot be used; the message says what would be right."""


class ConfigError(BadInput):
    """A configuration with unknown keys, or values that do not hold together."""


class ModelError(BadInput):
    """A model file that cannot be used as it was asked to be."""


class ProtocolError(TestbedError):
    """A peer broke the wire protocol."""


class LinkError(TestbedError):
    """The other side cannot be reached, or went silent."""


class LinkTimeout(LinkError):
    """No answer within the time allowed."""


class AdmissionError(TestbedError):
    """The BS cannot promise the token speed that was asked for."""


class EngineError(TestbedError):
    """A verification pass failed."""


class SensorError(TestbedError):
    """A power sensor that is there cannot be read."""


class GateError(TestbedError):
    """An output differs from the target's own greedy output."""
