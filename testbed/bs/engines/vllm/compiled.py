"""Compiled mode on a CPU: what vLLM 0.32 needs for it, and what it lacks to read its compiled code from disk."""

from __future__ import annotations

import os
import shutil
from typing import Any

from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable

from testbed.errors import EngineError


def check_compiler() -> None:
    """Check that TorchInductor will find its C++ compiler.

    Raises:
        EngineError: there is none.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise EngineError(
            f"compiled mode on a CPU needs a C++ compiler, and {compiler} is not installed: install it, name another "
            "in CXX, or leave compiled out"
        )


def read_compiled_code() -> None:
    """Let vLLM read code that TorchInductor compiled.

    vLLM keeps compiled code on disk and, after reading it, calls `finalize_loading`, which its own compiler backend has
    and TorchInductor's, the one of a CPU, lacks: every start would compile again. There is nothing to finalize.
    """
    found: Any = BundledAOTAutogradSerializableCallable
    if "finalize_loading" not in vars(found):
        found.finalize_loading = lambda compiled, config: None
