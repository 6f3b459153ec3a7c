"""Verification on llama.cpp: one of its sequences per session, all sessions of a batch in one decode.

A session's sequence holds the keys and values of its last round. The next round cuts them to what its prompt shares
with them and computes the last committed token and the drafted ones. Every sequence has a llama.cpp stream of its own
(`kv_unified` off), so that a token attends to the cells of its own session alone. A decode is fastest where its tokens
come from consecutive sequences in equal numbers; llama.cpp computes any others in parts, with the same results.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.batched import BatchedEngine
from testbed.bs.engines.fairness import owner, to_evict
from testbed.bs.engines.llama_options import context_options
from testbed.errors import EngineError, ModelError
from testbed.llama.context import MAX_BATCH
from testbed.llama.group import LlamaGroup, SequenceInput
from testbed.llama.kept import KeptTexts, common_prefix


@dataclass(slots=True)
class _LlamaSession:
    """A sequence of llama.cpp, and the ids whose keys and values it holds."""

    place: int
    ids: NDArray[np.int32]


class _SequenceShare(NamedTuple):
    """One request's share of a pass."""

    session: _LlamaSession
    prompt: NDArray[np.int32]
    cached: int
    """Leading ids that the session has computed."""
    first: int
    """Position of the last committed token: the first with logits."""

    def inputs(self, start: int, end: int) -> SequenceInput:
        """Ids at positions `start` to `end`."""
        return SequenceInput(self.session.place, start, self.prompt[start:end].tolist())


class _Scores(NamedTuple):
    """Statistics of the rows of a decode."""

    argmax: NDArray[np.int32]
    margin: NDArray[np.float32]
    draft_gap: NDArray[np.float32]
    hidden: NDArray[np.float32]
    logprobs: NDArray[np.float32] | None


class LlamaEngine(BatchedEngine):
    """Computes a pass in one decode after the prompts'; beyond `max_sessions`, the least recently used cache of the UE
    with most sessions is dropped. A conversation that its UE continues in a new session has only its new part computed,
    as long as no other session needed the place.

    Args:
        model: GGUF file, of floats or quantised.
        vocab_size: real tokens; rows of the head beyond them are never chosen. None: all rows.
        max_model_len: positions of a sequence; None: what the model was made for, at most MAX_DEFAULT_POSITIONS.
        max_sessions: sessions whose keys and values are kept, and that one decode computes together; None: as many as
            fit into KV_CACHE_BYTES, at most MAX_DEFAULT_SESSIONS.
        threads: None: OMP_NUM_THREADS, or `model_threads`.
        chunk_tokens: new tokens of one prompt in a pass; None: as many as it has room for.
        gpu_layers: layers on the GPU, if llama.cpp was built for one; -1: all.
        kv_type: precision of keys and values; None: f32 for float32 weights, f16 for others.

    Raises:
        ModelError: the file cannot be used, or has fewer rows than the vocabulary has tokens.
        BadInput: `max_model_len` or `max_sessions` out of range.
        ConfigError: another option out of range.
    """

    any_thread = True

    def __init__(
        self,
        model: str | Path,
        *,
        vocab_size: int | None = None,
        max_model_len: int | None = None,
        max_sessions: int | None = None,
        threads: int | None = None,
        chunk_tokens: int | None = None,
        gpu_layers: int = -1,
        kv_type: Literal["f16", "f32"] | None = None,
    ) -> None:
        super().__init__()
        options = context_options(Path(model), max_model_len, max_sessions, threads, gpu_layers, kv_type)
        self._llama: LlamaGroup | None = LlamaGroup(Path(model), options)
        self._sessions: OrderedDict[str, _LlamaSession] = OrderedDict()
        """Sessions by name, the least recently used first."""
        self._free = list(range(options.sequences))
        """Unused, empty sequences, in order."""
        self._kept = KeptTexts()
        """Texts of the other unused sequences."""
        self.max_requests = self.max_sessions = options.sequences
        self._outputs = options.outputs or 1
        self.model_name = str(model)
        self.vocab_size = self._llama.vocab_size(vocab_size)
        self.hidden_size = self._llama.hidden_size
        self.max_positions = self._llama.context
        self.max_batch_tokens, self.chunk_tokens = MAX_BATCH, chunk_tokens
        self.block_size, self.kv_tokens = 1, options.sequences * self._llama.context

    def cached(self, request: VerifyRequest) -> int:
        """See `BatchedEngine.cached`."""
        session = self._sessions.get(request.session)
        if session is None:
            grown = self._kept.grown(request.prefix, owner(request.session))
            return 0 if grown is None else grown[1]
        return common_prefix(session.ids, request.prefix, len(request.prefix) - 1)

    def own(self, request: VerifyRequest) -> int | None:
        """See `VerifyEngine.own`: a text of an unused sequence serves only one of the sessions that continue it."""
        return self.cached(request) if request.session in self._sessions else 0

    def held(self) -> Collection[str]:
        """See `BatchedEngine.held`."""
        return self._sessions.keys()

    def compute(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """See `BatchedEngine.compute`; at most one request per sequence."""
        if self._llama is None:
            raise EngineError("the engine is closed")
        return self._verify_together(self._llama, batch)

    def _verify_together(self, llama: LlamaGroup, part: Sequence[VerifyRequest]) -> list[VerifyResult]:
        busy = frozenset(request.session for request in part)
        shares = [self._share(llama, request, busy) for request in part]
        try:
            llama.fill([share.inputs(share.cached, share.first) for share in shares])
            results = self._score(llama, part, shares)
        except Exception as exc:
            for share in shares:
                llama.forget(share.session.place, share.cached)
            raise EngineError(f"llama.cpp failed in a pass of {len(part)} requests: {exc}") from exc
        for share in shares:
            share.session.ids = share.prompt
        return results

    def _share(self, llama: LlamaGroup, request: VerifyRequest, busy: Collection[str]) -> _SequenceShare:
        """A request's session, cut to what it has in common with the request's prompt."""
        session = self._sessions.pop(request.session, None) or self._open(llama, request, busy)
        self._sessions[request.session] = session
        prompt, first = request.prompt, len(request.prefix) - 1
        cached = common_prefix(session.ids, prompt, first)
        if cached < len(session.ids):
            llama.forget(session.place, cached)
            session.ids = session.ids[:cached]
        return _SequenceShare(session, prompt, cached, first)

    def _open(self, llama: LlamaGroup, request: VerifyRequest, busy: Collection[str]) -> _LlamaSession:
        """A session for a request: with the sequence of a text of the same UE that the request continues; else with an
        empty one: an unused one, or that of a text, or of a session outside the pass (`busy`).
        """
        grown = self._kept.grown(request.prefix, owner(request.session))
        if grown is not None:
            return _LlamaSession(grown[0], self._kept.take(grown[0]))
        if not self._free and not len(self._kept):
            stale, waiting = self.stale(self._sessions), {one.session for one in self._submitted}
            self._drop(llama, to_evict(self._sessions, request.session, busy, stale, waiting))
        return _LlamaSession(self._empty_place(llama), np.empty(0, np.int32))

    def _empty_place(self, llama: LlamaGroup) -> int:
        """Take the unused sequence with which those in use are most nearly consecutive, if possible one without a
        text, else that of the oldest text.
        """
        used = [session.place for session in self._sessions.values()]
        unused = [*self._free, *self._kept.places()]
        place = min(unused, key=lambda one: (max([one, *used]) - min([one, *used]), one in self._kept))
        if place in self._kept:
            self._kept.take(place)
            llama.forget(place, 0)
        else:
            self._free.remove(place)
        return place

    def _score(
        self, llama: LlamaGroup, part: Sequence[VerifyRequest], shares: Sequence[_SequenceShare]
    ) -> list[VerifyResult]:
        """Compute the K+1 rows of every request, and what the target says there."""
        order = sorted(range(len(part)), key=lambda i: shares[i].session.place)
        rows = [shares[i].inputs(shares[i].first, len(shares[i].prompt)) for i in order]
        # the bonus row faces no token; any id will do
        faced = np.concatenate([np.append(part[i].draft, 0) for i in order])
        logprobs = any(request.logprobs for request in part)
        pieces, at = [], 0
        for pack in _packs(rows, self._outputs):
            logits, hidden = llama.score(pack)
            pieces.append(self._statistics(logits, hidden, faced[at : at + len(logits)], logprobs))
            at += len(logits)
        scores = pieces[0] if len(pieces) == 1 else _joined(pieces)
        results: dict[int, VerifyResult] = {}
        start, own = 0, np.copy if len(part) > 1 else np.asarray  # a part would keep the whole pass's array
        for i in order:
            end = start + len(part[i].draft) + 1
            results[i] = VerifyResult(
                argmax=scores.argmax[start:end],
                margin=scores.margin[start:end],
                draft_gap=scores.draft_gap[start : end - 1],
                hidden=own(scores.hidden[start:end]) if part[i].hidden else None,
                logprobs=None if scores.logprobs is None or not part[i].logprobs else own(scores.logprobs[start:end]),
                cached=shares[i].cached,
            )
            start = end
        return [results[i] for i in range(len(part))]

    def _statistics(
        self, rows: NDArray[np.float32], hidden: NDArray[np.float32], faced: NDArray[np.int32], logprobs: bool
    ) -> _Scores:
        """Statistics of logits [n, rows of the head] that face the ids [n]; overwrites logits.

        Raises:
            ModelError: the logits are not numbers.
        """
        logits, each = rows[:, : self.vocab_size], np.arange(len(rows))
        argmax = logits.argmax(axis=1)
        top = logits[each, argmax]
        if not np.isfinite(top).all():
            raise ModelError(f"{self.model_name}: the model's logits are not numbers")
        gap = top - logits[each, faced]
        logits[each, argmax] = -np.inf
        margin = top - logits.max(axis=1)
        logits[each, argmax] = top
        return _Scores(
            argmax.astype(np.int32), margin, gap, hidden.copy(), _log_softmax(logits, top) if logprobs else None
        )

    def release(self, session: str) -> None:
        """See `VerifyEngine.release`: the session's sequence is free at once, and keeps its text until it is used."""
        super().release(session)
        if session in self._sessions:
            left = self._sessions.pop(session)
            self._kept.keep(left.place, left.ids, owner(session))

    def _drop(self, llama: LlamaGroup, session: str) -> None:
        place = self._sessions.pop(session).place
        llama.forget(place, 0)
        bisect.insort(self._free, place)

    def close(self) -> None:
        """Free the model; a second call does nothing."""
        self._sessions.clear()
        self._kept = KeptTexts()
        if self._llama is not None:
            self._llama.close()
            self._llama = None


def _packs(rows: Sequence[SequenceInput], most: int) -> Iterator[list[SequenceInput]]:
    """The ids of all rows, in order, in decodes of at most `most` ids."""
    pack: list[SequenceInput] = []
    room = most
    for row in rows:
        ids, position = row.ids, row.position
        while len(ids):
            pack.append(SequenceInput(row.sequence, position, ids[:room]))
            taken = len(pack[-1].ids)
            ids, position, room = ids[taken:], position + taken, room - taken
            if not room:
                yield pack
                pack, room = [], most
    if pack:
        yield pack


def _joined(pieces: Sequence[_Scores]) -> _Scores:
    """Statistics of several decodes as one."""
    argmax, margin, gap, hidden = (np.concatenate(column) for column in list(zip(*pieces, strict=True))[:4])
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return _Scores(argmax, margin, gap, hidden, np.concatenate(logprobs) if logprobs else None)


def _log_softmax(logits: NDArray[np.float32], top: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = logits - top[:, None]
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
