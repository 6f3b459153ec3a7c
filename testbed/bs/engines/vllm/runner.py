"""vLLM's engine as prompts in, verdict rows out; everything here needs vLLM's environment to be set beforehand."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.pooling_params import PoolingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.request import Request, RequestStatus

from testbed.bs.engines.model_files import ModelFiles
from testbed.bs.engines.vllm.compiled import check_compiler
from testbed.bs.engines.vllm.models import TASK, VERIFIERS, VOCAB_KEY, WorkerExtension
from testbed.bs.engines.vllm.prompt import VllmPrompt
from testbed.bs.engines.vllm.resident import ResidentScheduler, hashing_only_new
from testbed.errors import BadInput, ModelError

LOG = logging.getLogger(__name__)
CPU_KV_BYTES = 2 * 1024**3
"""KV cache on a CPU unless told otherwise; memory is taken as it fills."""
SELF_TEST = "self-test"
"""Session and request of `VllmRunner.check_resident`."""


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


class PromptShare(NamedTuple):
    """The part of a prompt that one pass computed."""

    name: str
    """Name under which the prompt was submitted."""
    new: int
    """Positions computed."""
    cached: int
    """Positions before them."""
    rows: NDArray[np.float32] | None
    """Verdict rows [n, columns], n <= rows asked for, see `TailPooler`; None: the prompt is not finished."""


class _LivePrompt(NamedTuple):
    """A submitted prompt that is not finished."""

    prompt: VllmPrompt
    request: Request


def engine_args(target: ModelFiles, dtype: str, options: Mapping[str, Any], extra: Mapping[str, Any]) -> EngineArgs:
    """Arguments of an engine that verifies.

    Args:
        options: arguments that the testbed names itself; None leaves vLLM's default.
        extra: any other `EngineArgs` fields.

    Raises:
        BadInput: a field that vLLM does not know, or one that the testbed sets.
        ModelError: a head size that vLLM's attention has no kernel for on a CPU.
        EngineError: compiled mode on a CPU without a C++ compiler.
    """
    if options.get("enforce_eager") is False and current_platform.is_cpu():
        check_compiler()
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
    common = {
        "disable_log_stats": True, "use_tqdm_on_load": False, "seed": 0,
        "load_format": "safetensors", "config_format": "hf",  # not Mistral's files, which may lie beside these
    }  # fmt: skip
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
    """One vLLM engine in this process; calls come from one thread at a time, except `submit`.

    Prompts go directly to the engine core: `LLMEngine` would check, copy and convert each of them and its output again.
    """

    def __init__(self, args: EngineArgs, prefix_cache: bool = True) -> None:
        self._prefix_cache = prefix_cache
        self._engine = LLMEngine.from_engine_args(args)
        self._core: EngineCore = getattr(self._engine.engine_core, "engine_core")  # noqa: B009, in this process
        self._inbox: deque[tuple[str, _LivePrompt]] = deque()
        """Prompts that the scheduler does not have yet."""
        self._live: dict[str, _LivePrompt] = {}
        self._begun: set[str] = set()
        """Prompts of which earlier passes have computed a part."""
        self._planned: dict[str, int] = {}
        """New tokens of each prompt in the last pass."""
        self._scheduler = self._resident()
        scheduler: Any = self._core.scheduler
        scheduler.schedule = functools.partial(self._plan, scheduler.schedule)
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
        core: Any = self._core
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
        self.submit(SELF_TEST, VllmPrompt(committed, [0], session=SELF_TEST))
        while self._inbox or self._live:
            self.step()
        self.submit(SELF_TEST, VllmPrompt([*committed, 0, 0], [0, 0], session=SELF_TEST))
        shares = self.step()
        self.forget()
        self.stats = PassStats()
        new = sum(share.new for share in shares)
        if new != 2 or shares[0].rows is None:
            raise RuntimeError(f"a round computed {new} tokens where 2 were new")

    def submit(self, name: str, prompt: VllmPrompt) -> None:
        """Prepare a prompt under a name of its own; it joins the next pass. From any thread."""
        ask: dict[str, Any] = {"facing": prompt.facing, "hidden": prompt.hidden, "logprobs": prompt.logprobs}
        if self._scheduler is not None and self._prefix_cache:
            ask["session"] = prompt.session
        params = PoolingParams(task=TASK, extra_kwargs=ask, skip_reading_prefix_cache=not self._prefix_cache)
        hasher = self._core.request_block_hasher
        request = Request(name, prompt.ids, None, params, arrival_time=0.0, block_hasher=hasher)
        request.prefill_stats = None  # counted by `_share`
        self._inbox.append((name, _LivePrompt(prompt, request)))

    def step(self) -> list[PromptShare]:
        """Run one pass over the prompts that fit into it.

        If it fails, all prompts and the prefix cache are dropped, since blocks may be marked as cached that were never
        computed.
        """
        try:
            while self._inbox:
                name, live = self._inbox.popleft()
                self._live[name] = live
                self._core.scheduler.add_request(live.request)
            if not self._live:
                return []
            self._planned = {}
            outputs, ran = self._core.step_fn()
            self._core.post_step(ran)
        except BaseException:
            self.drop()
            raise
        finished = outputs.get(0) if outputs else None
        tensors = {output.request_id: output.pooling_output for output in finished.outputs} if finished else {}
        self.stats.passes += 1
        return [self._share(name, new, tensors.get(name)) for name, new in self._planned.items()]

    def _plan(self, schedule: Callable[..., SchedulerOutput], *args: Any, **kwargs: Any) -> SchedulerOutput:
        """The next pass as the scheduler plans it, and a note of its prompts."""
        output = schedule(*args, **kwargs)
        self._planned = output.num_scheduled_tokens
        return output

    def _share(self, name: str, new: int, rows: Tensor | None) -> PromptShare:
        live = self._live[name]
        cached = live.request.num_computed_tokens - new
        self.stats.computed_tokens += new
        if name not in self._begun:
            self.stats.cached_tokens += cached
        if rows is None:
            self._begun.add(name)
        else:
            self._begun.discard(name)
            del self._live[name]
        return PromptShare(name, new, cached, None if rows is None else rows.numpy())

    def drop(self) -> None:
        """Drop all prompts and the prefix cache."""
        self._inbox.clear()
        self._core.scheduler.finish_requests(list(self._live), RequestStatus.FINISHED_ABORTED)
        self._live.clear()
        self._begun.clear()
        self.forget()

    def evicted(self, session: str) -> bool:
        """Whether sessions are resident, and this one, which has no prompt in progress, has no blocks."""
        return self._scheduler is not None and session not in self._scheduler.parked

    def release(self, session: str) -> None:
        """Drop the prompts of a session, and free its blocks."""
        mine = [name for name, live in self._live.items() if live.prompt.session == session]
        self._core.scheduler.finish_requests(mine, RequestStatus.FINISHED_ABORTED)
        for name in mine:
            del self._live[name]
            self._begun.discard(name)
        for entry in [entry for entry in list(self._inbox) if entry[1].prompt.session == session]:
            self._inbox.remove(entry)
        if self._scheduler is not None:
            self._scheduler.close(session)

    def forget(self) -> None:
        """Drop the prefix cache; no prompt is in progress."""
        self._engine.reset_prefix_cache()

    def close(self) -> None:
        """Free the model, its cache and its worker processes."""
        self._engine.engine_core.shutdown()
