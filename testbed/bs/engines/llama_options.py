"""Options of the llama.cpp engine's context: sequences, positions and precision that fit into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from testbed.errors import BadInput, ModelError
from testbed.llama.context import MAX_BATCH, MAX_SEQUENCES, LlamaOptions
from testbed.llama.gguf_rules import EMBEDDING, WITHOUT_ATTENTION, check_gguf, is_float32
from testbed.llama.memory import KV_BYTES, kv_width

MAX_DEFAULT_POSITIONS = 4096
MAX_DEFAULT_SESSIONS = 16
KV_CACHE_BYTES = 2**30
"""Default size of the KV cache, from which the number of sessions follows."""
LOGITS_BYTES = 2**26
"""Largest size of a decode's logits."""


def context_options(
    path: Path,
    positions: int | None = None,
    sessions: int | None = None,
    threads: int | None = None,
    gpu_layers: int = -1,
    kv_type: Literal["f16", "f32"] | None = None,
) -> LlamaOptions:
    """Options of the engine's context, bounded in memory where the arguments leave them open.

    Raises:
        ModelError, BadInput, ConfigError: as `LlamaEngine`.
    """
    if path.is_dir():
        raise ModelError(
            f"{path} is a directory, and llama.cpp takes a GGUF file: "
            f"`testbed models export --model {path} --out FILE.gguf` writes one"
        )
    header = check_gguf(path)
    family = str(header.scalars["general.architecture"])
    made_for = int(header.scalars[f"{family}.context_length"])
    if not 2 <= (made_for if positions is None else positions) <= made_for:
        raise BadInput(f"max_model_len must be between 2 and the model's {made_for}, got {positions}")
    positions = positions or min(made_for, MAX_DEFAULT_POSITIONS)
    if kv_type is None:
        kv_type = "f32" if is_float32(header) else "f16"
    if sessions is None:
        numbers = 1 if family in WITHOUT_ATTENTION else kv_width(header)  # the former are refused when they are loaded
        sessions = max(1, min(MAX_DEFAULT_SESSIONS, KV_CACHE_BYTES // (numbers * KV_BYTES[kv_type] * positions)))
    elif not 1 <= sessions <= MAX_SEQUENCES:
        raise BadInput(f"max_sessions must be between 1 and {MAX_SEQUENCES}, got {sessions}")
    outputs = max(1, min(MAX_BATCH, LOGITS_BYTES // (4 * header.tensors[EMBEDDING].shape[1])))
    return LlamaOptions(positions, sessions, threads, gpu_layers, None, kv_type, outputs)
