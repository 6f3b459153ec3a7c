"""The llama.cpp library: loading it, its log, and its default number of threads."""

from __future__ import annotations

import ctypes
import functools
import os
from collections import deque
from typing import Any

from testbed.errors import ModelError
from testbed.process.cores import model_threads, poll_briefly

MAX_DEFAULT_THREADS = 8
ERROR_LEVEL = 4
"""Error level of ggml's log; the comments in llama-cpp-python number the levels differently."""

_errors: deque[str] = deque(maxlen=8)
"""llama.cpp's last error lines, for messages of ModelError."""


@functools.cache
def library() -> Any:
    """The module llama_cpp.llama_cpp, with its log kept off the terminal.

    Raises:
        ModelError: llama-cpp-python is missing or cannot be loaded.
    """
    poll_briefly()
    try:
        from llama_cpp import llama_cpp
    except (ImportError, OSError, RuntimeError, MemoryError) as exc:
        fix = "install llama-cpp-python: " if isinstance(exc, ModuleNotFoundError) else ""
        raise ModelError(f"llama.cpp cannot be loaded, {fix}{_one_line(exc) or 'out of memory'}") from exc
    llama_cpp.llama_log_set(_log_callback(), ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


@functools.cache
def _log_callback() -> Any:
    """The log callback; cached so that it lives as long as llama.cpp may call it."""
    from llama_cpp import llama_cpp

    def keep_errors(level: int, text: bytes, _: ctypes.c_void_p) -> None:
        if level == ERROR_LEVEL:
            _errors.append(text.decode(errors="replace").strip())

    return llama_cpp.llama_log_callback(keep_errors)


def forget_errors() -> None:
    """Forget llama.cpp's errors, before a call whose own are wanted."""
    _errors.clear()


def reason() -> str:
    """The first error that llama.cpp logged since `forget_errors`."""
    return _one_line(_errors[0]) if _errors else "no reason given"


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


def default_threads(weights_bytes: int) -> int:
    """OMP_NUM_THREADS, or else `model_threads`, at most MAX_DEFAULT_THREADS."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return min(model_threads(weights_bytes), MAX_DEFAULT_THREADS)
