"""The registry of engines; an engine's module is imported when it is loaded.

An installed package adds an engine by an entry point in the group `testbed.engines`, which names an `EngineEntry`.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.bs.engines.base import VerifyEngine
from testbed.errors import BadInput
from testbed.process.cores import model_threads, poll_briefly
from testbed.registry import Registry


@dataclass(frozen=True, kw_only=True)
class EngineEntry:
    """An engine that can be chosen by name."""

    kind: str
    about: str
    """One line for help screens."""
    load: str
    """`module:Class` of its `VerifyEngine`; the class takes the model first, then keywords."""
    needs_model: bool = True
    """Whether it loads a target; one that needs none stands for its own target, without a tokenizer."""
    gguf: bool = False
    """Whether its target is a GGUF file; otherwise a Hugging Face directory or id."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Fields of `ServeConfig` that it takes beside dtype and max_model_len, and the keyword of each."""

    def keywords(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Keywords for those of these fields of `ServeConfig` that it takes."""
        return {self.options[name]: value for name, value in fields.items() if name in self.options}


ENGINES = Registry(
    "engine",
    "testbed.engines",
    EngineEntry(
        kind="vllm",
        about="vLLM: paged KV cache, prefix cache, batches",
        load="testbed.bs.engines.vllm.engine:VllmEngine",
        options={
            "max_batch": "max_batch",
            "max_batch_tokens": "max_batch_tokens",
            "chunk_tokens": "chunk_tokens",
            "tensor_parallel": "tensor_parallel_size",
            "memory_share": "gpu_memory_utilization",
            "prefix_cache": "prefix_cache",
            "compiled": "compiled",
        },
    ),
    EngineEntry(
        kind="transformers",
        about="Hugging Face transformers: the reference, one request at a time",
        load="testbed.bs.engines.transformers:TransformersEngine",
        options={"chunk_tokens": "chunk_tokens"},
    ),
    EngineEntry(
        kind="llama",
        about="llama.cpp: a GGUF target, of floats or quantised; several sessions in one decode",
        load="testbed.bs.engines.llama:LlamaEngine",
        gguf=True,
        options={"threads": "threads", "chunk_tokens": "chunk_tokens", "kv_type": "kv_type"},
    ),
    EngineEntry(
        kind="synthetic",
        about="no model: tokens are a pure function of the prefix",
        load="testbed.bs.engines.synthetic:SyntheticEngine",
        needs_model=False,
        options={"chunk_tokens": "chunk_tokens"},
    ),
    of=EngineEntry,
)


def leave_a_core(threads: int | None = None, weights_bytes: int = 0) -> None:
    """Limit engines to `threads` threads; or else to OMP_NUM_THREADS, or to `model_threads`: the rest of the process
    needs a core, and on cores that other processes use too, the threads of a pass wait for each other. Engines read
    this when they are imported.

    Args:
        weights_bytes: size of the target's weights.
    """
    poll_briefly()
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(model_threads(weights_bytes)))


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
        model: directory, Hugging Face id or GGUF file of the target; None for an engine that needs none.
        dtype: float32 or bfloat16; ignored by engines without it.
        max_model_len: positions of a sequence; None: the model's own limit.
        vocab_size: real tokens, the tokenizer's count; None: all rows of the head.
        options: further keyword arguments of the engine's class; None means its default.

    Raises:
        BadInput: an unknown kind or option (the message lists the known ones), or no model where one is needed.
        ModelError: the model's files cannot be used.
        EngineError: the model could not be loaded.
    """
    entry = ENGINES.choose(kind)
    engine: Callable[..., VerifyEngine] = pkgutil.resolve_name(entry.load)
    known = [option for option in inspect.signature(engine).parameters if option != "model"]
    if unknown := [option for option in options if option not in known]:
        raise BadInput(f"the {kind} engine has no option {', '.join(unknown)}; known: {', '.join(known)}")
    if model is None and entry.needs_model:
        wanted = "GGUF file" if entry.gguf else "directory or a Hugging Face id"
        raise BadInput(f"the {kind} engine needs a model: a {wanted}")
    common = {"dtype": dtype, "max_model_len": max_model_len, "vocab_size": vocab_size}
    chosen = {option: value for option, value in {**common, **options}.items() if option in known and value is not None}
    return engine(model, **chosen)
