"""vLLM's engine as prompts in, verdict rows out; everything here needs vLLM's environment to be set beforehand."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs.engine import tokens_input
from vllm.outputs import PoolingRequestOutput
from vllm.platforms import current_platform
from vllm.pooling_params import PoolingParams
from vllm.v1.engine.llm_engine import LLMEngine

from testbed.bs.engines.model_files import ModelFiles
from testbed.bs.engines.vllm.models import TASK, VERIFIERS, VOCAB_KEY, WorkerExtension
from testbed.bs.engines.vllm.prompt import VllmPrompt
from testbed.bs.engines.vllm.resident import ResidentScheduler, hashing_only_new
from testbed.errors import BadInput, ModelError

LOG = logging.getLogger(__name__)
CPU_KV_BYTES = 2 * 1024**3
"""KV cache on a CPU unless told otherwise; memory is taken as it fills."""
SELF_TEST = "self-test"
"""Session of `VllmRunner.check_resident`."""


@dataclass(slots=True)
class PassStats:
    """Counters of an engine."""

    passes: int = 0
    """Forward passes."""
    computed_tokens: int = 0
    """Positions that were computed."""
    cached_tokens: int = 0
    """Positions that came from the prefix cache."""
    redone_requests: int = 0
    """Requests whose first positions lay in cached blocks and took another pass."""


def engine_args(target: ModelFiles, dtype: str, options: Mapping[str, Any], extra: Mapping[str, Any]) -> EngineArgs:
    """Arguments of an engine that verifies.

    Args:
        options: arguments that the testbed names itself; None leaves vLLM's default.
        extra: any other `EngineArgs` fields.

    Raises:
        BadInput: a field that vLLM does not know, or one that the testbed sets.
        ModelError: a head size that vLLM's attention has no kernel for on a CPU.
    """
    fixed = {
        "model": str(target.directory),
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "runner": "pooling",
        "convert": "none",
        "dtype": dtype,
        "max_model_len": target.max_positions,
        # vLLM computes a pooling model's head in float32; the target's own head is what counts here.
        "hf_overrides": {"architectures": [VERIFIERS[target.architecture].__name__], "head_dtype": "model"},
        "additional_config": {VOCAB_KEY: target.vocab_size},
        "worker_extension_cls": f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}",
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "async_scheduling": False,
        "scheduler_reserve_full_isl": True,
    }
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    if unknown := sorted(set(extra) - known):
        raise BadInput(f"vLLM has no engine argument {', '.join(unknown)}")
    if taken := sorted(set(extra) & (set(fixed) | set(options))):
        raise BadInput(f"the testbed sets vLLM's {', '.join(taken)} itself")
    chosen = {name: value for name, value in options.items() if value is not None}
    return EngineArgs(**{**_platform_defaults(target), **chosen, **extra, **fixed})


def _platform_defaults(target: ModelFiles) -> dict[str, Any]:
    """Engine arguments that `extra` may change."""
    common = {"disable_log_stats": True, "use_tqdm_on_load": False, "load_format": "safetensors", "seed": 0}
    if not current_platform.is_cpu():
        return {**common, "block_size": 16}
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if target.head_size not in sizes:
        raise ModelError(
            f"{target.name} has heads of size {target.head_size}; on a CPU vLLM takes {', '.join(map(str, sizes))}: "
            "use the transformers engine"
        )
    return {**common, "block_size": 32, "enforce_eager": True, "kv_cache_memory_bytes": CPU_KV_BYTES}


def load_runner(args: EngineArgs, *, prefix_cache: bool = True, resident: bool = True) -> VllmRunner:
    """Load a model (seconds to minutes).

    Args:
        prefix_cache: whether requests read what earlier ones have computed.
        resident: whether sessions keep their blocks between rounds. Where this vLLM lacks what that needs, rounds read
            the prefix cache instead, block by block, and a warning says so.
    """
    if not (prefix_cache and resident):
        return VllmRunner(args, prefix_cache)
    runner = VllmRunner(dataclasses.replace(args, scheduler_cls=ResidentScheduler))
    try:
        runner.check_resident()
    except Exception as exc:
        LOG.warning("sessions are not resident with this vLLM (%s); rounds read the prefix cache block by block", exc)
        runner.close()
        return VllmRunner(args)
    return runner


class VllmRunner:
    """One vLLM engine in this process; calls come from one thread at a time."""

    def __init__(self, args: EngineArgs, prefix_cache: bool = True) -> None:
        self._prefix_cache = prefix_cache
        self._engine = LLMEngine.from_engine_args(args)
        self._ids = itertools.count()
        self._scheduler = self._resident()
        config = self._engine.vllm_config
        self.cache_block: int = config.cache_config.block_size
        """Tokens of a block of vLLM's cache."""
        self.block_size = self.cache_block if self._scheduler is None else 1
        blocks = self.cache_block * (config.cache_config.num_gpu_blocks or 0)
        self.kv_tokens: int | None = config.cache_config.kv_cache_size_tokens or blocks or None
        self.max_batch_tokens: int = config.scheduler_config.max_num_batched_tokens
        self.stats = PassStats()

    def _resident(self) -> ResidentScheduler | None:
        """The scheduler of an engine whose sessions keep their blocks; None: it has vLLM's own."""
        core = getattr(self._engine.engine_core, "engine_core")  # noqa: B009, in this process
        if not isinstance(core.scheduler, ResidentScheduler):
            return None
        core.request_block_hasher = hashing_only_new(core.scheduler, core.request_block_hasher)
        return core.scheduler

    def check_resident(self) -> None:
        """Run two rounds of a session, and find out whether the second one computes its own tokens alone.

        Raises:
            RuntimeError: it computes others, too.
        """
        committed = [0] * (self.cache_block + 3)
        self.run([VllmPrompt(committed, [0], session=SELF_TEST)])
        (rows,), (cached,) = self.run([VllmPrompt([*committed, 0, 0], [0, 0], session=SELF_TEST)])
        self.forget()
        self.stats = PassStats()
        if (cached, len(rows)) != (len(committed), 2):
            raise RuntimeError(f"a round computed {len(committed) + 2 - cached} tokens where 2 were new")

    def run(self, prompts: Sequence[VllmPrompt]) -> tuple[list[NDArray[np.float32]], list[int]]:
        """Verdict rows of every prompt, [n, columns], n <= rows asked for: see `TailPooler`; and how many of its
        positions came from the prefix cache.

        All prompts go through one pass if their new tokens fit into `max_batch_tokens`. If a pass fails, the requests
        and the cache are dropped, since blocks may be marked as cached that were never computed.
        """
        names = [str(next(self._ids)) for _ in prompts]
        outputs: dict[str, PoolingRequestOutput] = {}
        try:
            for name, prompt in zip(names, prompts, strict=True):
                self._submit(name, prompt)
            steps_left = 2 * sum(len(prompt.ids) for prompt in prompts)
            while self._engine.has_unfinished_requests():
                if steps_left == 0:  # a step computes a token or more, or fills a pipeline
                    raise RuntimeError("the engine makes no progress")
                steps_left -= 1
                self.stats.passes += 1
                for output in self._engine.step():
                    if isinstance(output, PoolingRequestOutput):
                        outputs[output.request_id] = output
        except BaseException:
            self._engine.abort_request(names)
            self._engine.reset_prefix_cache()
            raise
        cached = [outputs[name].num_cached_tokens for name in names]
        self.stats.cached_tokens += sum(cached)
        self.stats.computed_tokens += sum(len(prompt.ids) for prompt in prompts) - sum(cached)
        return [outputs[name].outputs.data.numpy() for name in names], cached

    def _submit(self, name: str, prompt: VllmPrompt) -> None:
        ask: dict[str, Any] = {"facing": prompt.facing, "hidden": prompt.hidden, "logprobs": prompt.logprobs}
        if self._scheduler is not None and self._prefix_cache:
            ask["session"] = prompt.session
        params = PoolingParams(task=TASK, extra_kwargs=ask, skip_reading_prefix_cache=not self._prefix_cache)
        self._engine.add_request(name, tokens_input(prompt.ids), params)

    def release(self, session: str) -> None:
        """Free the blocks of a session."""
        if self._scheduler is not None:
            self._scheduler.close(session)

    def forget(self) -> None:
        """Drop the prefix cache; no request is in progress between runs."""
        self._engine.reset_prefix_cache()

    def close(self) -> None:
        """Free the model, its cache and its worker processes."""
        self._engine.engine_core.shutdown()
