"""The engines by kind, each imported when it is asked for."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.bs.engines.base import VerifyEngine
from testbed.errors import BadInput

ENGINES = {
    "vllm": ("testbed.bs.engines.vllm.engine", "VllmEngine"),
    "transformers": ("testbed.bs.engines.transformers", "TransformersEngine"),
    "synthetic": ("testbed.bs.engines.synthetic", "SyntheticEngine"),
}
"""Module and class of each kind."""


def leave_a_core(threads: int | None = None) -> None:
    """Limit what engines compute with to `threads`, or to all cores but one: the rest of the process needs it, and on
    cores that others use too, threads of one pass wait for each other. Engines read it when they are imported.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(threads or max(1, (os.cpu_count() or 1) - 1)))


def load_engine(
    kind: str,
    model: str | Path | None,
    *,
    dtype: str = "float32",
    max_model_len: int | None = None,
    vocab_size: int | None = None,
    **options: Any,
) -> VerifyEngine:
    """Load a target on an engine.

    Args:
        kind: one of `ENGINES`.
        model: directory or Hugging Face id of the target; the synthetic engine needs none.
        dtype: float32 or bfloat16; the synthetic engine has none.
        max_model_len: positions of a sequence; None: what the model was made for.
        vocab_size: real tokens, the tokenizer's count; None: all rows of the head.
        options: further keyword arguments of the engine's class; None means its default.

    Raises:
        BadInput: an unknown kind or option (the message lists the known ones), or no model where one is needed.
        ModelError: the model's files cannot be used.
        EngineError: the model could not be loaded.
    """
    if kind not in ENGINES:
        raise BadInput(f"unknown engine {kind!r}: known are {', '.join(ENGINES)}")
    module, name = ENGINES[kind]
    engine: Callable[..., VerifyEngine] = getattr(importlib.import_module(module), name)
    known = [option for option in inspect.signature(engine).parameters if option != "model"]
    if unknown := [option for option in options if option not in known]:
        raise BadInput(f"the {kind} engine has no option {', '.join(unknown)}: known are {', '.join(known)}")
    if model is None and kind != "synthetic":
        raise BadInput(f"the {kind} engine needs a model: a directory or a Hugging Face id")
    common = {"dtype": dtype, "max_model_len": max_model_len, "vocab_size": vocab_size}
    chosen = {option: value for option, value in {**common, **options}.items() if option in known and value is not None}
    return engine(model, **chosen)
