"""Verification on transformers, the reference: one pass per request, a KV cache per session."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.batched import BatchedEngine
from testbed.bs.engines.fairness import to_evict
from testbed.bs.engines.model_files import check_files
from testbed.errors import EngineError, ModelError
from testbed.llama.kept import common_prefix


@dataclass(slots=True)
class _CachedSession:
    """The ids whose keys and values a cache holds, and the cache."""

    ids: NDArray[np.int32]
    cache: DynamicCache


class TransformersEngine(BatchedEngine):
    """Computes the rounds of a pass one by one; beyond `max_sessions`, the least recently used cache of the UE with
    most sessions is dropped.

    Args:
        model: directory of a Hugging Face model, or its id.
        dtype: float32 or bfloat16.
        vocab_size: real tokens; rows of the head beyond them are never chosen. None: all rows.
        max_model_len: positions of a sequence; None: the model's own limit.
        max_batch_tokens: new tokens of one pass.
        chunk_tokens: new tokens of one prompt in a pass; None: as many as it has room for.
        max_sessions: sessions whose keys and values are kept.
        device: torch device; None: a GPU if available.

    Raises:
        ModelError: the model's files cannot be used: see `check_files`.
        BadInput: an argument out of range.
        EngineError: transformers could not load the model.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "float32",
        vocab_size: int | None = None,
        max_model_len: int | None = None,
        max_batch_tokens: int = 8192,
        chunk_tokens: int | None = None,
        max_sessions: int = 64,
        device: str | None = None,
    ) -> None:
        super().__init__()
        target = check_files(model, dtype=dtype, vocab_size=vocab_size, max_model_len=max_model_len)
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        try:
            made: Any = AutoModelForCausalLM.from_pretrained(
                target.directory,
                dtype=getattr(torch, dtype),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
            loaded, found = made
            self._model: Any = loaded.to(self._device).eval()
        except Exception as exc:
            raise EngineError(f"transformers could not load {target.name}: {exc}") from exc
        if missing := sorted(found["missing_keys"]):  # transformers would make them up
            raise ModelError(f"the weights of {target.name} lack {', '.join(missing[:3])}")
        self._sessions: OrderedDict[str, _CachedSession] = OrderedDict()
        self.max_sessions: int = max_sessions
        self.model_name = target.name
        self.vocab_size = target.vocab_size
        self.hidden_size = target.hidden_size
        self.max_positions = target.max_positions
        self.max_batch_tokens, self.chunk_tokens = max_batch_tokens, chunk_tokens
        self.block_size, self.kv_tokens = 1, None

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """See `BatchedEngine.compute`."""
        if self._model is None:
            raise EngineError("the engine is closed")
        return [self._verify_one(request) for request in batch]

    def cached(self, request: VerifyRequest) -> int:
        """See `BatchedEngine.cached`."""
        session = self._sessions.get(request.session)
        return 0 if session is None else common_prefix(session.ids, request.prefix, len(request.prefix) - 1)

    def _verify_one(self, request: VerifyRequest) -> VerifyResult:
        prompt = request.prompt
        session = self._sessions.pop(request.session, None) or _CachedSession(prompt[:0], DynamicCache())
        try:
            with torch.inference_mode():
                hidden, cached = self._forward(session, prompt, len(request.prefix) - 1)
                result = self._judge(hidden, request, cached)
        except Exception as exc:
            raise EngineError(f"transformers failed on session {request.session}: {exc}") from exc
        if len(self._sessions) >= self.max_sessions:
            del self._sessions[to_evict(self._sessions, request.session, stale=self.stale(self._sessions))]
        self._sessions[request.session] = _CachedSession(prompt, session.cache)
        return result

    def _forward(self, session: _CachedSession, prompt: NDArray[np.int32], first: int) -> tuple[Tensor, int]:
        """Final-layer states [K+1, hidden_size] from position `first` on, and the number of leading positions that were
        cached.

        The session's cache is rolled back to the ids shared with the prompt, at most up to `first`, then extended.
        """
        kept = common_prefix(session.ids, prompt, first)
        if kept < len(session.ids):
            session.cache.crop(kept - len(session.ids))
        ids = torch.from_numpy(prompt[kept:].astype(np.int64))[None].to(self._device)
        states: Tensor = self._model.base_model(ids, past_key_values=session.cache, use_cache=True).last_hidden_state
        return states[0, first - kept :].clone(), kept  # a part would keep the whole pass's array

    def _judge(self, hidden: Tensor, request: VerifyRequest, cached: int) -> VerifyResult:
        logits: Tensor = self._model.get_output_embeddings()(hidden)[:, : self.vocab_size].float()
        best, second = logits.topk(2, dim=-1).values.unbind(-1)
        drafted = torch.from_numpy(request.draft.astype(np.int64)).to(logits.device)
        faced = logits[:-1].gather(-1, drafted[:, None])[:, 0]
        return VerifyResult(
            argmax=logits.argmax(-1).to(torch.int32).cpu().numpy(),
            margin=(best - second).cpu().numpy(),
            draft_gap=(best[:-1] - faced).cpu().numpy(),
            hidden=hidden.float().cpu().numpy() if request.hidden else None,
            logprobs=logits.log_softmax(-1).cpu().numpy() if request.logprobs else None,
            cached=cached,
        )

    def release(self, session: str) -> None:
        """See `VerifyEngine.release`."""
        super().release(session)
        self._sessions.pop(session, None)

    def close(self) -> None:
        """Free the model."""
        self._sessions.clear()
        self._model = None
