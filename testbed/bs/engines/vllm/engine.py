"""Verification on vLLM: one forward pass per batch, on its paged KV cache.

A round is a request whose prompt is the committed prefix and the drafted tokens. It continues in the blocks of its
session's last round (`resident.py`) and computes what is new; the first prompt of a session reads what it shares with
others from the prefix cache. Rejected tokens are overwritten. A lost session costs one prefill.
"""

from __future__ import annotations

import itertools
import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import Share, VerifyEngine, VerifyRequest, VerifyResult
from testbed.bs.engines.model_files import ModelFiles, check_files
from testbed.bs.engines.vllm.prompt import VllmPrompt
from testbed.errors import EngineError, TestbedError

if TYPE_CHECKING:
    from testbed.bs.engines.vllm.runner import PassStats, PromptShare, VllmRunner

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Environment variables that vLLM reads when it is imported; existing values stay."""


@dataclass(slots=True)
class _VllmRound:
    """A submitted round."""

    request: VerifyRequest
    prompt: VllmPrompt
    cached: int | None = None
    """Leading positions that were cached before its first pass; None: it had none yet."""
    rows: list[NDArray[np.float32]] = field(default_factory=list)
    """Verdict rows of its cuts, if there are any, and its own, in the order of their positions."""
    missing: int = 1
    """Prompts that are not finished: its own, or cuts of it."""


class VllmEngine(VerifyEngine):
    """A target on vLLM. A process holds one at a time: vLLM's process groups are global.

    Loading takes seconds to minutes. `stats` counts passes, positions and redone requests.

    Args:
        model: directory of a Hugging Face model, or its id.
        dtype: float32 or bfloat16.
        vocab_size: real tokens; rows of the head beyond them are never chosen. None: all rows.
        max_model_len: positions of a sequence; None: what the model was made for.
        max_batch: sequences of one pass; None: vLLM's default.
        max_batch_tokens: new tokens of one pass; None: vLLM's default.
        chunk_tokens: new tokens of one round in a pass; longer prompts are spread over several. None: as many as a pass
            has room for.
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
        chunk_tokens: int | None = None,
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
            "long_prefill_token_threshold": chunk_tokens and min(chunk_tokens, target.max_positions),
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
        self._names = itertools.count()
        self._rounds: dict[str, tuple[_VllmRound, int]] = {}
        """Rounds by the names of their prompts in vLLM, and the place of the prompt's rows."""

    def submit(self, request: VerifyRequest) -> None:
        """See `VerifyEngine.submit`."""
        if self._runner is None:
            raise EngineError("the engine is closed")
        self.check(request)
        prompt = VllmPrompt.of(request)
        self._add(self._runner, _VllmRound(request, prompt), [prompt])

    def _add(self, runner: VllmRunner, round_: _VllmRound, prompts: Sequence[VllmPrompt]) -> None:
        """Submit the prompts whose rows come first in a round."""
        round_.missing, empty = len(prompts), np.empty((0, 0), np.float32)
        round_.rows = [empty for _ in prompts] + round_.rows
        for place, prompt in enumerate(prompts):
            name = str(next(self._names))
            self._rounds[name] = (round_, place)
            runner.submit(name, prompt)

    def step(self) -> list[Share]:
        """See `VerifyEngine.step`."""
        if self._runner is None:
            raise EngineError("the engine is closed")
        try:
            return [self._share(self._runner, share) for share in self._runner.step()]
        except Exception as exc:
            count = len({id(round_) for round_, _ in tuple(self._rounds.values())})
            self._rounds.clear()
            self._runner.drop()
            raise EngineError(f"vLLM failed in a pass of {count} requests: {_one_line(exc)}") from exc

    def _share(self, runner: VllmRunner, share: PromptShare) -> Share:
        """A round's share of a pass.

        Rows are missing where their positions lay in blocks of the prefix cache, which happens where the drafted
        tokens, too, were seen before: a repeated prompt. They are computed by prompts that are cut at these blocks.
        """
        round_, place = self._rounds[share.name]
        if round_.cached is None:
            round_.cached = share.cached
        result = None
        if share.rows is not None:
            del self._rounds[share.name]
            round_.rows[place] = share.rows
            round_.missing -= 1
        if not round_.missing:
            rows = round_.rows[0] if len(round_.rows) == 1 else np.concatenate(round_.rows)
            if len(rows) < round_.prompt.rows:
                if len(round_.rows) > 1:
                    raise RuntimeError("the prefix cache served a block that had to be computed")
                runner.stats.redone_requests += 1
                self._add(runner, round_, round_.prompt.cuts(round_.prompt.rows - len(rows), runner.cache_block))
            else:
                result = self._unpack(round_.prompt, rows, round_.cached)
        return Share(round_.request, share.new, share.cached, result)

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

    def own(self, request: VerifyRequest) -> int | None:
        """See `VerifyEngine.own`: known of sessions that gave their blocks back, without the prefix cache."""
        return 0 if self._runner is not None and self._runner.evicted(request.session) else None

    def release(self, session: str) -> None:
        """See `VerifyEngine.release`: the session's blocks are free at once."""
        if self._runner is not None:
            self._runner.release(session)
        for name in [name for name, (round_, _) in tuple(self._rounds.items()) if round_.request.session == session]:
            del self._rounds[name]

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
