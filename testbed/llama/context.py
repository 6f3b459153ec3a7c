"""One llama.cpp model and context, through llama-cpp-python's low-level API: ids in, logits and hidden states out."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from testbed.errors import ConfigError, ModelError
from testbed.llama.gguf_rules import check_gguf
from testbed.llama.library import default_threads, forget_errors, library, reason
from testbed.process.interrupts import held_back

MAX_BATCH = 512
"""Largest number of tokens per pass."""
MAX_OUTPUTS = 2
"""Largest number of tokens of a drafter's pass with logits (all have them, or none): what a round leaves to compute."""
MAX_SEQUENCES = 256
MOST_VIEWS = 64
"""Cached views of llama.cpp's memory."""
MAX_DEFAULT_CONTEXT = 8192


@dataclass(frozen=True)
class LlamaOptions:
    """Options for loading and running a model.

    Attributes:
        context: positions per sequence; None: the model's own number, at most MAX_DEFAULT_CONTEXT.
        sequences: number of sequences open at once; each has a cache for `context` positions.
        threads: None: `library.default_threads`, since threads that share a core with others spin at each other's
            barriers.
        gpu_layers: layers on the GPU, if llama.cpp was built for one; -1: all.
        flash_attention: None: llama.cpp's choice on a GPU, off on a CPU, where it is slower for single tokens and sums
            in f16.
        kv_type: precision of the KV cache.
        outputs: largest number of tokens of a pass with logits, or one of every sequence; None: MAX_OUTPUTS.

    Raises:
        ConfigError: a value out of range.
    """

    context: int | None = None
    sequences: int = 4
    threads: int | None = None
    gpu_layers: int = -1
    flash_attention: bool | None = None
    kv_type: Literal["f16", "f32"] = "f16"
    outputs: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.sequences <= MAX_SEQUENCES:
            raise ConfigError(f"sequences {self.sequences} is not within 1 to {MAX_SEQUENCES}")
        if self.context is not None and self.context < 1:
            raise ConfigError(f"context {self.context} is not at least 1")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads {self.threads} is not at least 1")
        if self.kv_type not in ("f16", "f32"):
            raise ConfigError(f"kv_type {self.kv_type!r} is neither 'f16' nor 'f32'")
        if self.outputs is not None and not 1 <= self.outputs <= MAX_BATCH:
            raise ConfigError(f"outputs {self.outputs} is not within 1 to {MAX_BATCH}")


class LlamaContext:
    """A GGUF model with one context of several sequences. Not thread-safe.

    Attributes:
        rows: number of rows of the output head, including padding.
        hidden_size: width of the final hidden state.
        context: positions per sequence.
    """

    def __init__(self, path: Path, options: LlamaOptions) -> None:
        """Load a model.

        Raises:
            ModelError: the file is missing or unusable, or the model's cache cannot be rolled back.
        """
        self.path = path
        self._context: Any = None
        check_gguf(path)
        self._lib = library()
        with held_back():  # an interrupt inside the log callback would be lost
            self._model = self._load(options)
        try:
            self._refuse_unrollable()
            self.rows = int(self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(self._model)))
            self.hidden_size = int(self._lib.llama_model_n_embd(self._model))
            self.context = self._positions(options)
            with held_back():
                self._context = self._make_context(options)
        except BaseException:
            self.close()
            raise
        self._memory = self._lib.llama_get_memory(self._context)
        self._logits, self._hidden = _RowsView(self.rows), _RowsView(self.hidden_size)
        self._make_batch()
        self._outputs_on = True

    def compute(self, sequence: int, position: int, ids: Sequence[int], *, outputs: bool) -> None:
        """Compute `ids` from `position` on, in passes of bounded size, and add them to the sequence's cache.

        Args:
            outputs: whether to make `logits` and `hidden` available for the last id.

        Raises:
            ModelError: a pass failed; the cache is cut at `position`.
        """
        head = max(0, len(ids) - MAX_OUTPUTS) if outputs else len(ids)
        try:
            for at in range(0, head, MAX_BATCH):
                self._pass(sequence, position + at, ids[at : min(at + MAX_BATCH, head)], outputs=False)
            if outputs:
                self._pass(sequence, position + head, ids[head:], outputs=True)
        except ModelError:
            self.forget(sequence, position)
            raise

    def _pass(self, sequence: int, position: int, ids: Sequence[int], *, outputs: bool) -> None:
        if outputs is not self._outputs_on:
            self._lib.llama_set_embeddings(self._context, outputs)
            self._flags.fill(outputs)
            self._outputs_on = outputs
        count = len(ids)
        self._ids[:count] = ids
        self._places[:count] = range(position, position + count)
        self._sequences[:count] = sequence
        self._batch.n_tokens = count
        code = self._lib.llama_decode(self._context, self._batch)
        if code:
            raise ModelError(f"{self.path}: llama.cpp failed to compute {count} tokens (code {code})")

    def logits(self) -> NDArray[np.float32]:
        """Logits [rows] of the last id computed with outputs; a view of llama.cpp's memory that the next pass
        overwrites.
        """
        row: NDArray[np.float32] = self._logits.at(self._lib.llama_get_logits_ith(self._context, -1), 1)[0]
        return row

    def hidden(self) -> NDArray[np.float32]:
        """Final-layer, normalised hidden state [hidden_size] that gave `logits`; a view like it."""
        row: NDArray[np.float32] = self._hidden.at(self._lib.llama_get_embeddings_ith(self._context, -1), 1)[0]
        return row

    def vocab_size(self, ids: int | None) -> int:
        """The vocabulary size of a tokenizer with `ids` ids (None: all rows of the output head).

        Raises:
            ModelError: more ids than rows; the model is closed.
        """
        if ids is not None and not 1 <= ids <= self.rows:
            self.close()
            raise ModelError(f"{self.path}: {self.rows} rows for a tokenizer of {ids} ids; give a model that shares it")
        return self.rows if ids is None else ids

    def forget(self, sequence: int, position: int) -> None:
        """Remove a sequence's cache from `position` on."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, position, -1)

    def close(self) -> None:
        """Free context and model; a second call does nothing."""
        context, self._context = self._context, None
        model, self._model = self._model, None
        if context:
            self._lib.llama_free(context)
        if model:
            self._lib.llama_model_free(model)

    def _load(self, options: LlamaOptions) -> Any:
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers = options.gpu_layers
        params.check_tensors = True  # weights that are not numbers
        # Repacked weights, except on a CPU with AMX, where they crash: github.com/ggml-org/llama.cpp/issues/20824.
        params.use_extra_bufts = b"AMX_INT8 = 1" not in self._lib.llama_print_system_info()
        forget_errors()
        model = self._lib.llama_model_load_from_file(os.fsencode(self.path), params)
        if not model:
            raise ModelError(f"{self.path}: llama.cpp cannot load it: {reason()}")
        return model

    def _refuse_unrollable(self) -> None:
        lib, model = self._lib, self._model
        kind = ""
        if lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model):
            kind = "a recurrent model"
        elif lib.llama_model_n_swa(model) > 0:
            kind = "a model with sliding-window attention"
        elif lib.llama_model_has_encoder(model):
            kind = "a model with an encoder"
        if kind:
            raise ModelError(f"{self.path}: {kind} cannot be rolled back; give a decoder with full attention")

    def _positions(self, options: LlamaOptions) -> int:
        trained = int(self._lib.llama_model_n_ctx_train(self._model))
        if options.context is None:
            return min(trained, MAX_DEFAULT_CONTEXT)
        if options.context > trained:
            raise ModelError(f"{self.path}: context {options.context} is more than the model's {trained} positions")
        return options.context

    def _make_context(self, options: LlamaOptions) -> Any:
        lib = self._lib
        params = lib.llama_context_default_params()
        params.n_ctx = self.context * options.sequences
        params.n_seq_max = options.sequences
        params.n_batch = params.n_ubatch = MAX_BATCH
        params.n_outputs_max = max(options.outputs or MAX_OUTPUTS, options.sequences)  # llama.cpp asserts the latter
        params.n_threads = params.n_threads_batch = options.threads or default_threads(self.path.stat().st_size)
        params.embeddings = True
        params.pooling_type = lib.LLAMA_POOLING_TYPE_NONE
        params.kv_unified = False
        params.type_k = params.type_v = {"f16": lib.GGML_TYPE_F16, "f32": lib.GGML_TYPE_F32}[options.kv_type]
        params.flash_attn_type = self._flash_attention(options)
        forget_errors()
        context = lib.llama_init_from_model(self._model, params)
        if not context:
            raise ModelError(f"{self.path}: llama.cpp cannot create a context: {reason()}")
        return context

    def _flash_attention(self, options: LlamaOptions) -> int:
        if options.flash_attention is None and options.gpu_layers and self._lib.llama_supports_gpu_offload():
            return int(self._lib.LLAMA_FLASH_ATTN_TYPE_AUTO)
        if options.flash_attention:
            return int(self._lib.LLAMA_FLASH_ATTN_TYPE_ENABLED)
        return int(self._lib.LLAMA_FLASH_ATTN_TYPE_DISABLED)

    def _make_batch(self) -> None:
        """Create a batch over our own arrays, with one sequence id per entry."""
        self._ids, self._places = np.zeros(MAX_BATCH, np.int32), np.zeros(MAX_BATCH, np.int32)
        self._counts = np.ones(MAX_BATCH, np.int32)
        self._flags = np.ones(MAX_BATCH, np.int8)
        self._sequences = np.zeros(MAX_BATCH, np.int32)
        int32 = ctypes.POINTER(ctypes.c_int32)
        start = self._sequences.ctypes.data
        self._batch = self._lib.llama_batch(
            token=self._ids.ctypes.data_as(int32),
            pos=self._places.ctypes.data_as(int32),
            n_seq_id=self._counts.ctypes.data_as(int32),
            seq_id=(int32 * MAX_BATCH)(*[ctypes.cast(start + 4 * i, int32) for i in range(MAX_BATCH)]),
            logits=self._flags.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )


class _RowsView:
    """Numpy views of rows of `size` floats at llama.cpp's pointers; cached, since the pointers rarely change."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._arrays: dict[tuple[int, int], NDArray[np.float32]] = {}

    def at(self, pointer: Any, rows: int) -> NDArray[np.float32]:
        """[rows, size] floats."""
        key = ctypes.addressof(pointer.contents), rows
        if key not in self._arrays:
            if len(self._arrays) == MOST_VIEWS:
                self._arrays.clear()
            self._arrays[key] = np.ctypeslib.as_array(pointer, (rows, self._size))
        return self._arrays[key]
