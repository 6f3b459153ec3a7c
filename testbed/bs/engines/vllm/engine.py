"""Verification on vLLM: one forward pass per batch, on its paged KV cache.

A round is a request whose prompt is the committed prefix and the drafted tokens. It continues in the blocks of its
session's last round (`resident.py`) and computes what is new; the first prompt of a session reads what it shares with
others from the prefix cache. Rejected tokens are overwritten. A lost session costs one prefill.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.checks import check_batch
from testbed.bs.engines.model_files import ModelFiles, check_files
from testbed.bs.engines.vllm.prompt import VllmPrompt
from testbed.errors import EngineError, TestbedError

if TYPE_CHECKING:
    from testbed.bs.engines.vllm.runner import PassStats, VllmRunner

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Environment variables that vLLM reads when it is imported; existing values stay."""


class VllmEngine:
    """Implements `VerifyEngine`. A process holds one at a time: vLLM's process groups are global.

    Loading takes seconds to minutes. `stats` counts passes, positions and redone requests.

    Args:
        model: directory of a Hugging Face model, or its id.
        dtype: float32 or bfloat16.
        vocab_size: real tokens; rows of the head beyond them are never chosen. None: all rows.
        max_model_len: positions of a sequence; None: what the model was made for.
        max_batch: sequences of one pass; None: vLLM's default.
        max_batch_tokens: new tokens of one pass; None: vLLM's default.
        tensor_parallel_size: GPUs that share the model.
        gpu_memory_utilization: share of a GPU's memory that vLLM may take; on a CPU the KV cache has a fixed size
            (`extra={"kv_cache_memory_bytes": ...}`).
        prefix_cache: whether a prefix that an earlier pass has computed is read instead of computed again.
        resident: whether a session's keys and values stay in their blocks between rounds, so that a round computes the
            last committed token and the drafted ones alone; see `resident.py`. Without, or where this vLLM lacks what
            it needs, rounds read the prefix cache, which serves whole blocks.
        compiled: on a CPU, whether the model is compiled (`torch.compile`): shorter passes, longer loading. Compiled
            code is kept in vLLM's cache (VLLM_CACHE_ROOT). On a GPU vLLM compiles in any case.
        extra: further fields of vLLM's `EngineArgs`.

    Raises:
        ModelError: the model's files cannot be used: see `check_files`.
        BadInput: arguments that do not hold together.
        EngineError: vLLM is not installed, could not load the model, or is loaded already.
    """

    _open: ClassVar[weakref.ref[VllmEngine] | None] = None

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "float32",
        vocab_size: int | None = None,
        max_model_len: int | None = None,
        max_batch: int | None = None,
        max_batch_tokens: int | None = None,
        tensor_parallel_size: int = 1,
        gpu_memory_utilization: float = 0.9,
        prefix_cache: bool = True,
        resident: bool = True,
        compiled: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if self._open is not None and self._open() is not None:
            raise EngineError("this process holds a vLLM engine already: close it first")
        target = check_files(model, dtype=dtype, vocab_size=vocab_size, max_model_len=max_model_len)
        options = {
            "max_num_seqs": max_batch,
            "max_num_batched_tokens": max_batch_tokens,
            "tensor_parallel_size": tensor_parallel_size,
            "gpu_memory_utilization": gpu_memory_utilization,
            "enforce_eager": False if compiled else None,
        }
        self._runner: VllmRunner | None = _load(target, dtype, options, extra or {}, prefix_cache, resident)
        VllmEngine._open = weakref.ref(self)
        self.model_name = target.name
        self.vocab_size = target.vocab_size
        self.hidden_size = target.hidden_size
        self.max_positions = target.max_positions
        self.max_batch_tokens = self._runner.max_batch_tokens
        self.block_size, self.kv_tokens = self._runner.block_size, self._runner.kv_tokens
        self.stats: PassStats = self._runner.stats

    def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """See `VerifyEngine.verify`."""
        if self._runner is None:
            raise EngineError("the engine is closed")
        check_batch(batch, self.vocab_size, self.max_positions)
        prompts = [VllmPrompt.of(request) for request in batch]
        try:
            tails, cached = self._runner.run(prompts)
            tails = self._complete(self._runner, prompts, tails)
        except Exception as exc:
            raise EngineError(f"vLLM failed in a pass of {len(batch)} requests: {_one_line(exc)}") from exc
        return [self._unpack(*parts) for parts in zip(prompts, tails, cached, strict=True)]

    def _complete(
        self, runner: VllmRunner, prompts: Sequence[VllmPrompt], tails: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float32]]:
        """Compute the rows that are missing since their positions lay in blocks of the prefix cache.

        That happens where the drafted tokens, too, were seen before: a repeated prompt.
        """
        cuts = [
            prompt.cuts(prompt.rows - len(tail), runner.cache_block)
            for prompt, tail in zip(prompts, tails, strict=True)
        ]
        flat = [cut for of_prompt in cuts for cut in of_prompt]
        if not flat:
            return list(tails)
        runner.stats.redone_requests += sum(map(bool, cuts))
        redone = iter(zip(flat, runner.run(flat)[0], strict=True))
        completed = []
        for of_prompt, tail in zip(cuts, tails, strict=True):
            pieces = [next(redone) for _ in of_prompt]
            if any(len(rows) != cut.rows for cut, rows in pieces):
                raise RuntimeError("the prefix cache served a block that had to be computed")
            completed.append(np.concatenate([rows for _, rows in pieces] + [tail]))
        return completed

    def _unpack(self, prompt: VllmPrompt, tail: NDArray[np.float32], cached: int) -> VerifyResult:
        """Columns of `TailPooler`'s output."""
        states = 3 + (self.hidden_size if prompt.hidden else 0)
        return VerifyResult(
            argmax=tail[:, 0].astype(np.int32),
            margin=tail[:, 1].copy(),
            draft_gap=tail[:-1, 2].copy(),
            hidden=tail[:, 3:states].copy() if prompt.hidden else None,
            logprobs=tail[:, states:].copy() if prompt.logprobs else None,
            cached=cached,
        )

    def release(self, session: str) -> None:
        """See `VerifyEngine.release`: the session's blocks are free at once."""
        if self._runner is not None:
            self._runner.release(session)

    def forget(self) -> None:
        """Drop the prefix cache: whatever comes next is computed anew."""
        if self._runner is not None:
            self._runner.forget()

    def close(self) -> None:
        """Free the model; a second call does nothing."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
            VllmEngine._open = None


def _load(
    target: ModelFiles,
    dtype: str,
    options: Mapping[str, Any],
    extra: Mapping[str, Any],
    prefix_cache: bool,
    resident: bool,
) -> VllmRunner:
    """Import vLLM with its environment set, and load the target."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from testbed.bs.engines.vllm.runner import engine_args, load_runner

            args = engine_args(target, dtype, options, extra)
            return load_runner(args, prefix_cache=prefix_cache, resident=resident)
        except TestbedError:
            raise
        except Exception as exc:
            raise EngineError(f"vLLM could not load {target.name}: {_one_line(exc)}") from exc


def _one_line(exc: Exception, length: int = 300) -> str:
    """The message of an exception, on one line and of bounded length."""
    return " ".join(str(exc).split())[:length] or type(exc).__name__
