"""Acceptance of the drafted tokens of a round: by the judge, or by rejection sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.bs.judging.base import Candidates, Judge, RiskJudge
from testbed.bs.judging.distributions import drawn
from testbed.bs.pending import Round
from testbed.bs.sessions import Session
from testbed.protocols.base import expect_names, hidden_names, read_hidden
from testbed.protocols.codec import AnyArray
from testbed.protocols.sampling import Kept

Judged = tuple[Session, Round, Kept]
"""A judged round."""


def threshold(session: Session, round_: Round) -> float:
    """θ by which a round is judged: as it was decided when the round began, or else as the UE requested it."""
    return session.threshold if round_.threshold is None else round_.threshold


class Acceptance:
    """Accepts drafted tokens; the candidates of all rounds of a pass are judged in one call."""

    def __init__(self, judge: Judge, vocab_size: int) -> None:
        self._judge, self._vocab_size = judge, vocab_size
        self._counts_risk = judge if isinstance(judge, RiskJudge) else None
        """Found out once: `isinstance` with a protocol takes longer than the rest of a decision."""

    def decide(self, ready: Sequence[tuple[Session, Round]]) -> list[Judged]:
        """The number of tokens accepted in each round, and the token that follows them."""
        judged = [i for i, (s, r) in enumerate(ready) if s.protocol and s.protocol.judged and r.candidates()]
        asked = [self._candidates(*ready[i]) for i in judged]
        keeps = dict(zip(judged, self._judge.judge(asked), strict=True)) if asked else {}
        if self._counts_risk is not None:
            for i in judged:
                ready[i][0].risk = max(ready[i][0].risk, self._counts_risk.risk(ready[i][0].name))
        found: list[Judged] = []
        for i, (session, round_) in enumerate(ready):
            if session.drawn:
                found.append((session, round_, drawn(session, round_, self._vocab_size)))
                continue
            assert round_.result is not None
            positions = round_.candidates()
            keep = keeps.get(i, np.zeros(len(positions), np.bool_))
            stays = next((p for p, kept in zip(positions, keep, strict=True) if not kept), len(round_.window.ids))
            found.append((session, round_, Kept(stays, int(round_.result.argmax[stays]))))
        return found

    def needs_hidden(self, session: Session, round_: Round) -> bool:
        """Whether a round's candidates are judged by hidden states."""
        judged = session.protocol is not None and session.protocol.judged
        return judged and self._judge.needs_hidden(threshold(session, round_))

    def by_hidden(self, judged: Sequence[Judged]) -> int:
        """Number of positions that were judged by hidden states."""
        return sum(len(round_.candidates()) for session, round_, _ in judged if self.needs_hidden(session, round_))

    def _candidates(self, session: Session, round_: Round) -> Candidates:
        rows = round_.candidates()
        result, hidden = round_.result, round_.window.hidden
        assert result is not None and hidden is not None
        seen = rows if session.states == "predicting" else [row + 1 for row in rows]
        return Candidates(
            draft_ids=round_.window.ids[rows],
            target_ids=result.argmax[rows],
            drafter_hidden=hidden[rows],
            target_hidden=None if result.hidden is None else result.hidden[seen],
            csi=round_.csi,
            threshold=threshold(session, round_),
            session=session.name,
            risk=session.risk,
        )


def asked_bytes(session: Session, round_: Round) -> int:
    """Size of the hidden states that decide about a round, the UE's included, which were requested; 0: none do."""
    return round_.target_bytes and round_.target_bytes + 4 * len(round_.window.ids) * session.drafter_hidden


def attach_hidden(session: Session, round_: Round, arrays: dict[str, AnyArray]) -> None:
    """Add the requested hidden states of a round's candidates to its window.

    Raises:
        ProtocolError: the arrays are not those that were asked for.
    """
    expect_names(arrays, *hidden_names(session.hidden_bits))
    rows = round_.candidates()
    states = read_hidden(arrays, len(rows), session.drafter_hidden, session.hidden_bits)
    hidden = np.zeros((len(round_.window.ids), session.drafter_hidden), states.dtype)
    hidden[rows] = states
    round_.window = round_.window._replace(hidden=hidden)
    session.last_reply = []  # a copy of the draft no longer asks for them
