"""Sessions of all kinds that submit rounds between an engine's passes, for tests of continuous passes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from testbed.bs.engines.base import Share, VerifyEngine, VerifyRequest
from testbed.bs.engines.batched import BatchedEngine
from tests.bs.oracle import ask, check, tokens
from tests.support.reference import Reference

BLOCK = 32
LONGEST = 420
"""Tokens of a prefix, at which a session ends."""


@dataclass
class Decoder:
    """A session: what it has committed, and when it submits its next round."""

    name: str
    prefix: list[int]
    kind: str
    """greedy: keeps what the target says; judge: keeps mismatches; sampled: keeps anything, adds any token; alone: has
    no drafts; late: decides two passes later, as SH does."""
    round: VerifyRequest | None = None
    decide_at: int = 0
    """Pass after which a finished round is decided; 0: there is none."""
    verified: tuple[list[int], list[int]] = ([], [])
    """Drafted tokens of that round, and the target's."""
    computed: int = 0
    """Committed tokens that the last round computed or found."""
    targets: list[int] = field(default_factory=list)
    """The target's next tokens as far as the last round told them."""


@dataclass
class Traffic:
    """Sessions on one engine, every result of which is compared with the reference."""

    engine: VerifyEngine
    reference: Reference
    rng: np.random.Generator
    windows: tuple[int, ...] = (0, 1, 2, 5, 8, 31, 64)
    atol: float = 1e-4
    sessions: list[Decoder] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    passes: int = 0
    rounds: int = 0
    pieces: int = 0
    opened: int = 0
    lost: int = 0
    """Rounds that began with fewer cached tokens than their sessions had computed, by a block or more: evictions."""

    def run(self, passes: int, sessions: int) -> None:
        """Run a number of passes over about `sessions` sessions, and further ones until all rounds are finished."""
        while self.passes < passes or any(session.round is not None for session in self.sessions):
            while len(self.sessions) < sessions and self.passes < passes:
                self.sessions.append(self._open())
            for session in self.sessions:
                if session.round is None and not session.decide_at and self.passes < passes and self.rng.random() < 0.7:
                    self._submit(session)
            known = {s.name: self.engine.own(s.round) for s in self.sessions if s.round is not None}
            for share in self.engine.step():
                self._foreseen(share, known[share.request.session])
                self._finished(share)
            self.passes += 1
            self._decide()
            self._drop()
        for session in self.sessions:
            self.engine.release(session.name)
        assert self.engine.step() == []

    def _open(self) -> Decoder:
        """A session with a new prompt or a repeated one; lengths are short, long, or at a block's boundary."""
        if self.prompts and self.rng.random() < 0.3:
            prompt = self.prompts[int(self.rng.integers(len(self.prompts)))]
        else:
            lengths = (1, 20, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 70, 5 * BLOCK + 1, 300)
            prompt = tokens(self.rng, lengths[int(self.rng.integers(len(lengths)))]).tolist()
            self.prompts.append(prompt)
        kind = ("greedy", "judge", "sampled", "alone", "late")[int(self.rng.integers(5))]
        self.opened += 1
        return Decoder(str(self.opened), list(prompt), kind)

    def _submit(self, session: Decoder) -> None:
        window = 0 if session.kind == "alone" else self.windows[int(self.rng.integers(len(self.windows)))]
        drafted = [*session.targets, *tokens(self.rng, window).tolist()][:window]
        drafted = [token if self.rng.random() < 0.9 else int(tokens(self.rng, 1)[0]) for token in drafted]
        hidden, logprobs = bool(self.rng.random() < 0.3), bool(self.rng.random() < 0.3)
        session.round = ask(session.name, session.prefix, drafted, hidden=hidden, logprobs=logprobs)
        self.engine.submit(session.round)

    def _foreseen(self, share: Share, known: int | None) -> None:
        """Check what the engine said before the pass of what the session has cached. The prefix cache, and texts of
        sessions that have ended, may hold more of its first round; another round of the pass may take its place.
        """
        if known and isinstance(self.engine, BatchedEngine):
            assert share.cached in (known, 0)
        else:
            assert share.cached >= (known or 0)

    def _finished(self, share: Share) -> None:
        (session,) = (session for session in self.sessions if session.name == share.request.session)
        assert share.request is session.round and share.new > 0
        self.lost += share.cached <= session.computed - BLOCK
        session.computed = min(share.cached + share.new, len(share.request.prefix))
        if share.result is None:
            self.pieces += 1
            return
        if self.engine.block_size == 1:  # otherwise it may be a prompt that brings missing rows back
            assert share.cached + share.new == len(share.request.prefix) + len(share.request.draft)
        check(share.result, share.request, self.reference, self.atol)
        session.round, session.verified = None, (share.request.draft.tolist(), share.result.argmax.tolist())
        session.decide_at = self.passes + (2 if session.kind == "late" else 1)
        self.rounds += 1

    def _decide(self) -> None:
        """Commit the rounds that are due."""
        for session in self.sessions:
            if 0 < session.decide_at <= self.passes:
                session.decide_at = 0
                self._commit(session, *session.verified)

    def _commit(self, session: Decoder, drafted: list[int], target: list[int]) -> None:
        right = next((i for i, token in enumerate(drafted) if token != target[i]), len(drafted))
        kept, follows = right, target[right]
        if session.kind in ("judge", "late"):
            kept = int(self.rng.integers(right, len(drafted) + 1))
            follows = target[kept]
        elif session.kind == "sampled":
            kept = int(self.rng.integers(len(drafted) + 1))
            follows = int(tokens(self.rng, 1)[0])
        session.prefix += [*drafted[:kept], follows]
        session.targets = target[right + 1 :] if session.kind == "greedy" else []

    def _drop(self) -> None:
        """Close some sessions, also while the engine has their rounds, and those whose prefixes are long."""
        for session in list(self.sessions):
            if len(session.prefix) > LONGEST or self.rng.random() < 0.02:
                self.engine.release(session.name)
                self.sessions.remove(session)
