"""The verification seam: rounds are submitted at any time, and each step is one forward pass of the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput, EngineError
from testbed.protocols.sampling import Coupling


@dataclass(frozen=True, slots=True, eq=False)
class VerifyRequest:
    """One session's round.

    `prefix` is the whole committed prefix (prompt included, at least one id), `draft` the K drafted ids after it; K may
    be 0 (plain decoding of the next token). Both int32.
    """

    session: str
    prefix: NDArray[np.int32]
    draft: NDArray[np.int32]
    hidden: bool = False
    logprobs: bool = False
    ahead: int = 0
    """With K = 0: further tokens that the engine may decode greedily while no request waits; see `ThreadRunner`."""
    ends: Collection[int] = ()
    """Tokens after which that stops."""
    coupling: Coupling | None = None
    """With `logprobs`: chooses the tokens, in `EngineRunner.step`; None: they are the argmax."""

    @property
    def prompt(self) -> NDArray[np.int32]:
        """[prefix + K] committed prefix and drafted tokens, the input of the target."""
        return np.concatenate([self.prefix, self.draft]).astype(np.int32, copy=False)


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The target's outputs at the K+1 positions of one request.

    Row i belongs to the state that predicts the token after prefix + draft[:i]: rows 0..K-1 predict the positions of
    the drafted tokens, row K the bonus token. Padded vocabulary rows are never chosen. Further rows belong to tokens
    that were decoded ahead.
    """

    argmax: NDArray[np.int32]
    """[K+1] the target's own greedy tokens."""
    margin: NDArray[np.float32]
    """[K+1] logit of the argmax minus the next best logit."""
    draft_gap: NDArray[np.float32]
    """[K] logit of the argmax minus logit of the drafted token, row by row; 0 where they agree."""
    hidden: NDArray[np.float32] | None = None
    """[K+1, hidden_size] normalised states of the final layer, if requested."""
    logprobs: NDArray[np.float32] | None = None
    """[K+1, vocab_size] natural log-probabilities, if requested."""
    cached: int | None = None
    """Leading positions read from the prefix cache; None: the engine does not report it."""

    def gap(self, row: int) -> float:
        """Logit of the argmax at `row` minus that of the drafted token, or of the second best at the bonus position."""
        return float(self.draft_gap[row] if row < len(self.draft_gap) else self.margin[row])


class Share(NamedTuple):
    """What one pass computed of a round."""

    request: VerifyRequest
    """The object that was submitted."""
    new: int
    """Positions computed."""
    cached: int
    """Positions before them, whose keys and values were read."""
    result: VerifyResult | None
    """Outputs of the round, which is finished; None: later passes compute the rest of its prefix."""
    passes: int = 1
    """Passes in a row, each of which but the first decoded a token ahead."""


class VerifyEngine(ABC):
    """A target model. One thread at a time calls `step`, `release` and `close`; any thread may call `submit`, even
    during a step.
    """

    model_name: str
    vocab_size: int
    """Real tokens (the tokenizer's count); head rows beyond them are masked."""
    hidden_size: int
    max_positions: int
    """Upper bound of prefix + draft + 1."""
    max_batch_tokens: int
    """New tokens of one pass."""
    block_size: int
    """Tokens of a block of the prefix cache, which holds whole blocks only."""
    kv_tokens: int | None
    """Tokens whose keys and values fit the cache; None: no fixed number."""
    max_sessions: int | None = None
    """Sessions whose keys and values it holds; None: no fixed number."""
    any_thread: ClassVar[bool] = False
    """Whether calls may come from different threads, one at a time."""

    @abstractmethod
    def submit(self, request: VerifyRequest) -> None:
        """Add a round: a prompt or a follow-up. It belongs to the first pass with room for it.

        Raises:
            BadInput: see `check`.
            EngineError: the engine is closed.
        """

    @abstractmethod
    def step(self) -> list[Share]:
        """Run one pass over submitted rounds; without any it does nothing.

        A prompt beyond `max_batch_tokens`, or beyond the engine's bound of one prompt's share, is spread over several
        passes, in which other rounds take part.

        Raises:
            EngineError: the pass failed; all submitted rounds are dropped, and sessions are unchanged.
        """

    @abstractmethod
    def release(self, session: str) -> None:
        """Drop a session and its submitted round; an unknown one is no error."""

    @abstractmethod
    def close(self) -> None:
        """Free the model."""

    def cached(self, request: VerifyRequest) -> int:
        """Leading tokens of a request whose keys and values the engine holds, at most all but the prefix's last; 0 also
        where it does not know. For engines with `any_thread`.
        """
        return 0

    def own(self, request: VerifyRequest) -> int | None:
        """Those of `cached` that the request's own session holds, so that no other request of the pass can take them;
        None: the engine does not know. Called between passes.
        """
        return None

    def check(self, request: VerifyRequest) -> None:
        """Refuse a request that no pass can verify.

        Raises:
            BadInput: an empty prefix, ids outside the vocabulary, or more positions than `max_positions`.
        """
        if len(request.prefix) == 0:
            raise BadInput(f"session {request.session}: the prefix is empty, but a pass needs one token or more")
        positions = len(request.prefix) + len(request.draft) + 1
        if positions > self.max_positions:
            raise BadInput(
                f"session {request.session}: {positions} positions, but the target takes {self.max_positions}"
            )
        for ids in (request.prefix, request.draft):
            if len(ids) and ids.astype(np.uint64).max() >= self.vocab_size:  # negative ids become large
                raise BadInput(f"session {request.session}: token ids outside the vocabulary of {self.vocab_size}")

    def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """Submit a batch and step until its last round is finished; results in its order.

        For callers that have no other rounds submitted.

        Raises:
            BadInput: a request that `check` refuses; the sessions of the batch are released.
            EngineError: a pass failed.
        """
        left = {id(request): request for request in batch}
        try:
            for request in left.values():
                self.submit(request)
        except BadInput:
            for request in left.values():
                self.release(request.session)
            raise
        results: dict[int, VerifyResult] = {}
        begun: dict[int, int] = {}
        steps_left = 2 * sum(
            len(request.prefix) + len(request.draft) for request in batch
        )  # a step computes a token, or fills a pipeline
        while left:
            if steps_left == 0:
                raise EngineError("the engine makes no progress")
            steps_left -= 1
            for share in self.step():
                key = id(share.request)
                if share.result is None:
                    begun.setdefault(key, share.cached)
                else:
                    del left[key]
                    results[key] = replace(share.result, cached=begun[key]) if key in begun else share.result
        return [results[id(request)] for request in batch]
