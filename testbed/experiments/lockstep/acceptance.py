"""Acceptance of drafted tokens in lockstep decoding, as a base station accepts them: by a judge, or by sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.judging.base import Candidates, Judge, StrictJudge
from testbed.channel.csi import Csi
from testbed.protocols import protocol
from testbed.protocols.base import Window
from testbed.protocols.messages import Reading
from testbed.protocols.sampling import Probs, Sampling, request_seed, warp
from testbed.ue.drafters.base import DraftToken
from testbed.ue.drafters.sampler import DraftSampler

REJECTION = "rejection"


class AcceptanceRule(Protocol):
    """Decides which tokens of a window stay, and which token follows."""

    def sampler(self, number: int) -> DraftSampler | None:
        """Chooses the drafted tokens of prompt `number`; None: the most likely ones."""

    def request(self, session: str, text: Sequence[int], tokens: Sequence[DraftToken]) -> VerifyRequest:
        """The request for one window."""

    def keep(self, tokens: Sequence[DraftToken], result: VerifyResult, sampler: DraftSampler | None) -> tuple[int, int]:
        """Number of accepted tokens, and the token after them."""


@dataclass(frozen=True)
class JudgedRule:
    """Implements `AcceptanceRule`: greedy decoding under a judge, on a constant channel."""

    judge: Judge
    threshold: float = 0.0
    """θ; 0 is strict."""
    csi: Csi | None = None
    reading: Reading = "predicting"

    def sampler(self, number: int) -> None:
        """Tokens are the most likely ones."""

    def request(self, session: str, text: Sequence[int], tokens: Sequence[DraftToken]) -> VerifyRequest:
        """With hidden states if anything is judged."""
        return VerifyRequest(session, np.array(text, np.int32), _ids(tokens), hidden=self.threshold > 0)

    def keep(self, tokens: Sequence[DraftToken], result: VerifyResult, sampler: DraftSampler | None) -> tuple[int, int]:
        """Tokens before the first mismatch that the judge rejects."""
        accepted = self._accepted(tokens, result)
        return accepted, int(result.argmax[accepted])

    def _accepted(self, tokens: Sequence[DraftToken], result: VerifyResult) -> int:
        ids = _ids(tokens)
        rows = np.flatnonzero(ids != result.argmax[:-1])
        if not len(rows):
            return len(ids)
        if result.hidden is None:
            return int(rows[0])
        target = result.hidden[rows + (self.reading == "after")]
        states = np.stack([tokens[row].hidden for row in rows])
        asked = Candidates(ids[rows], result.argmax[rows], states, target, self.csi, self.threshold)
        (kept,) = self.judge.judge([asked])
        return len(ids) if kept.all() else int(rows[np.argmin(kept)])


@dataclass(frozen=True)
class SampledRule:
    """Implements `AcceptanceRule`: rejection sampling (WISP eq. 1), with the random numbers of a run with this seed."""

    sampling: Sampling
    seed: int = 0

    def sampler(self, number: int) -> DraftSampler:
        """Draws tokens from the drafter's distributions."""
        return DraftSampler(self.sampling, request_seed(self.seed, REJECTION, number))

    def request(self, session: str, text: Sequence[int], tokens: Sequence[DraftToken]) -> VerifyRequest:
        """With the target's distributions."""
        return VerifyRequest(session, np.array(text, np.int32), _ids(tokens), logprobs=True)

    def keep(self, tokens: Sequence[DraftToken], result: VerifyResult, sampler: DraftSampler | None) -> tuple[int, int]:
        """Each token with probability min(1, p/q), then one from the residual or from p."""
        logprobs = result.logprobs
        assert sampler is not None and logprobs is not None

        def target(position: int) -> Probs:
            return warp(logprobs[position], self.sampling)

        window = Window(_ids(tokens), None, sampler.window(logprobs.shape[1]))
        kept = protocol(REJECTION).keep(window, target, sampler.draws)
        assert kept.token is not None
        return kept.accepted, kept.token


STRICT = JudgedRule(StrictJudge())


def _ids(tokens: Sequence[DraftToken]) -> NDArray[np.int32]:
    return np.array([token.id for token in tokens], np.int32)
