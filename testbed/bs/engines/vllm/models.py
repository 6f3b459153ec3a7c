"""Target models as vLLM pooling models: a pass returns what the target says at the tail of every prompt.

vLLM's pooling runner is a public way to get more than one position out of a pass. Importing this module registers the
models and prepares compiled mode, also in the worker processes of a tensor-parallel engine. Tried with vLLM 0.32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence, Set
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from vllm import ModelRegistry
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler.abstract import Pooler
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM
from vllm.tasks import PoolingTask
from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

from testbed.bs.engines.vllm.compiled import read_compiled_code

TASK: Literal["token_embed"] = "token_embed"
"""The pooling task whose output has one row per token."""
VOCAB_KEY = "testbed_vocab_size"
"""Key of the number of real tokens in the engine's additional configuration."""
WARM_UP: dict[str, Any] = {"facing": [0] * 9, "hidden": False, "logprobs": False}
"""Request of vLLM's memory profiling."""


class TailPooler(Pooler):
    """Turns final-layer hidden states into verdict rows at the last positions of every prompt.

    A request's `extra_kwargs` hold `facing` (the drafted token at each of the last positions), `hidden` and `logprobs`
    (what to add). Its output is float32 [n, 3 + hidden_size if hidden + vocabulary if logprobs]: argmax id (exact below
    2**24), margin, gap to the drafted token, state, log-probabilities. n is less than the number of positions asked for
    where the first of them lie in blocks that the prefix cache held.
    """

    def __init__(self, compute_logits: Callable[[Tensor], Tensor | None], vocab_size: int) -> None:
        super().__init__()
        self._compute_logits = compute_logits
        self._vocab_size = vocab_size
        self._ends: WeakKeyDictionary[PoolingStates, int] = WeakKeyDictionary()
        """Position after the last piece of each prompt that is computed in pieces."""

    def get_supported_tasks(self) -> Set[PoolingTask]:
        """See `Pooler`."""
        return {TASK}

    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor | None]:
        """Verdict rows of the requests whose prompts this pass has finished, None for the others.

        Args:
            hidden_states: [tokens of the pass, hidden_size].
        """
        asks = [params.extra_kwargs or WARM_UP for params in pooling_metadata.pooling_params]
        finished = pooling_metadata.get_pooling_cursor().get_finished_mask()
        states = pooling_metadata.pooling_states
        positions, counts, spans = _tail_positions(pooling_metadata, asks)
        computed = hidden_states[_indices(positions, hidden_states)]
        if all(finished) and not any(state.hidden_states_cache for state in states):  # no prompt in pieces
            return self._verdicts(computed, counts, asks)
        tails: list[Tensor] = []
        for state, piece, done, (start, end) in zip(
            states, torch.split(computed, counts), finished, spans, strict=True
        ):
            if self._ends.get(state) != start:  # the first piece, or computed anew after its blocks were taken
                state.clean()
            state.hidden_states_cache.append(piece)
            self._ends[state] = end
            if done:
                tails.append(torch.cat(state.hidden_states_cache))
                state.clean()
        if not tails:
            return [None] * len(finished)
        done_asks = [ask for ask, done in zip(asks, finished, strict=True) if done]
        rows = iter(self._verdicts(torch.cat(tails), [len(tail) for tail in tails], done_asks))
        return [next(rows) if done else None for done in finished]

    def _verdicts(self, tails: Tensor, counts: list[int], asks: Sequence[dict[str, Any]]) -> list[Tensor | None]:
        """Output of finished requests, whose states [sum of counts, hidden_size] follow each other."""
        logits = self._compute_logits(tails)
        if logits is None:  # this is not the rank that gathers the logits
            return [None] * len(counts)
        logits = logits[:, : self._vocab_size]
        facing = [token for ask, count in zip(asks, counts, strict=True) for token in ask["facing"][-count:]]
        best, second = logits.topk(2, dim=-1).values.float().unbind(-1)
        faced = logits.gather(-1, _indices(facing, logits)[:, None])[:, 0].float()
        verdicts = torch.stack([logits.argmax(-1).float(), best - second, best - faced], dim=-1)
        packed: list[Tensor | None] = list(torch.split(verdicts, counts))
        starts = itertools.accumulate(counts, initial=0)
        for place, (ask, start, count) in enumerate(zip(asks, starts, counts, strict=False)):
            if not (ask["hidden"] or ask["logprobs"]):
                continue
            rows = slice(start, start + count)
            parts = [verdicts[rows]]
            if ask["hidden"]:
                parts.append(tails[rows].float())
            if ask["logprobs"]:
                parts.append(logits[rows].float().log_softmax(-1))
            packed[place] = torch.cat(parts, dim=-1)
        return packed


def _tail_positions(
    metadata: PoolingMetadata, asks: Sequence[dict[str, Any]]
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Where the parts of every request's tail that this pass has computed lie among its tokens, how long they are (0 or
    more each), and which positions of its prompt the pass has computed.
    """
    cursor = metadata.get_pooling_cursor()
    positions: list[int] = []
    counts: list[int] = []
    spans: list[tuple[int, int]] = []
    offset = 0
    for ask, prompt, end, computed in zip(
        asks,
        cursor.prompt_lens_cpu.tolist(),
        cursor.seq_lens_cpu.tolist(),
        cursor.num_scheduled_tokens_cpu.tolist(),
        strict=True,
    ):
        offset += computed
        counts.append(max(0, end - max(prompt - len(ask["facing"]), end - computed)))
        positions.extend(range(offset - counts[-1], offset))
        spans.append((end - computed, end))
    return positions, counts, spans


def _indices(values: list[int], like: Tensor) -> Tensor:
    """int64 [n] on the device of another tensor."""
    return torch.tensor(values, dtype=torch.long).to(like.device, non_blocking=True)


Verified = LlamaForCausalLM | Qwen2ForCausalLM | Qwen3ForCausalLM | Qwen3MoeForCausalLM


def _pooler(model: Verified, config: VllmConfig) -> TailPooler:
    additional = config.additional_config
    if not isinstance(additional, dict):
        raise TypeError(f"vLLM's additional configuration lacks {VOCAB_KEY}")
    return TailPooler(model.compute_logits, additional[VOCAB_KEY])


@default_pooling_type(tok_pooling_type="ALL")
class LlamaVerifier(LlamaForCausalLM):
    """Llama 2 and 3, and what else is shaped like them."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.pooler = _pooler(self, vllm_config)


@default_pooling_type(tok_pooling_type="ALL")
class Qwen2Verifier(Qwen2ForCausalLM):
    """Qwen 2 and 2.5."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.pooler = _pooler(self, vllm_config)


@default_pooling_type(tok_pooling_type="ALL")
class Qwen3Verifier(Qwen3ForCausalLM):
    """Qwen 3, dense."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.pooler = _pooler(self, vllm_config)


@default_pooling_type(tok_pooling_type="ALL")
class Qwen3MoeVerifier(Qwen3MoeForCausalLM):
    """Qwen 3, mixture of experts."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.pooler = _pooler(self, vllm_config)


VERIFIERS: dict[str, type[nn.Module]] = {
    "LlamaForCausalLM": LlamaVerifier,
    "Qwen2ForCausalLM": Qwen2Verifier,
    "Qwen3ForCausalLM": Qwen3Verifier,
    "Qwen3MoeForCausalLM": Qwen3MoeVerifier,
}
for _verifier in VERIFIERS.values():
    ModelRegistry.register_model(_verifier.__name__, _verifier)
read_compiled_code()


class WorkerExtension:
    """Nothing: naming it as vLLM's `worker_extension_cls` makes worker processes import this module."""
