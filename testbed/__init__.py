"""A wireless device-edge testbed for LLM inference by speculative decoding.

`testbed.run`, `testbed.sweep`, `testbed.load` and `testbed.plot` are what notebooks need: see `testbed.library`.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
LIBRARY = (
    "BadInput",
    "DemoConfig",
    "Run",
    "RunConfig",
    "ServeConfig",
    "SweepConfig",
    "TestbedError",
    "load",
    "plot",
    "run",
    "sweep",
)
"""Names of `testbed.library`, loaded when one of them is used, so that a UE's modules stay light."""


def __getattr__(name: str) -> Any:
    if name in LIBRARY:
        return getattr(importlib.import_module("testbed.library"), name)
    raise AttributeError(f"module 'testbed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *LIBRARY])
