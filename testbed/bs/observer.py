"""The observer seam: what a base station reports while it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from testbed.bs.pending import Round
from testbed.bs.sessions import Session
from testbed.channel.csi import Csi
from testbed.optim.pass_time import RequestWork
from testbed.protocols.messages import NO_HINT, Verdict


class FinishedPass(NamedTuple):
    """An engine pass that is over, or several in a row over the same sessions, as measured."""

    works: Sequence[RequestWork]
    """Tokens computed and cached, request by request."""
    rounds: int
    """Requests that were rounds in every pass; the others were pieces of prompts."""
    waiting: int
    """Requests that waited when the pass was planned, its own included."""
    evicted: int
    """Tokens expected in the prefix cache and not found there."""
    start_s: float
    """Time of its planning, on the server's clock."""
    seconds: float
    expected_s: float | None
    """Estimate for the same tokens; None: there is no estimator."""
    passes: int = 1
    """Passes in a row that it stands for: streams are decoded ahead."""


class Observer:
    """Informed of every round and pass, on the server's event loop: calls must be short. This one ignores them."""

    def came_ahead(self, session: Session, tokens: int, draft_s: float) -> None:
        """A window arrived that was sent before the verdict of the previous round, or for a stream.

        Args:
            tokens: its length.
            draft_s: drafting time since the previous such window, as its `Draft` states it.
        """

    def round(self, session: Session, round_: Round, verdict: Verdict) -> None:
        """A round was committed; its verdict is about to be sent."""

    def passed(self, done: FinishedPass) -> None:
        """A pass is over."""

    def ended(self, session: Session) -> None:
        """A session was closed or expired."""


class RoundNote(NamedTuple):
    """A finished round. Times are on the server's clock, durations in seconds."""

    number: int
    """Number of the note, from 1."""
    ue: int
    """Number of the UE, from 1 in order of arrival: identities are not shown."""
    place: int
    """Place among the UE's sessions, from 0; a new session takes the lowest free one."""
    session: int
    """Number of the session, over all UEs."""
    round: int
    arrived_s: float
    end_s: float
    """Time of the verdict."""
    draft_s: float
    """Drafting time, as the `Draft` states it."""
    link_s: float
    """Time from the last verdict to this window's arrival, less `draft_s`: downlink and uplink; NaN: unknown, as in a
    first round."""
    queue_s: float
    verify_s: float
    hidden_s: float
    """Time from `NeedHidden` to `Hidden`."""
    judge_s: float
    drafted: int
    accepted: int
    committed: int
    judged: int
    """Candidates that the judge kept."""
    batch: int
    """Requests of the pass that verified it."""
    ahead: int
    """Tokens of windows that came ahead since the session's last note."""
    used: int
    """Tokens of such windows that the pass verified."""
    overlap_s: float
    """Drafting time, and without streams link time, that passed before the verdict of the previous round."""
    tokens: Sequence[int]
    """Committed since the session's last note; empty unless text is shown."""
    marks: str
    """One letter for each of `tokens`: d drafted; j drafted, differs from the target's, kept by the judge; t the
    target's own, or drawn by the UE from the target's distribution."""


class PassNote(NamedTuple):
    """A finished pass."""

    number: int
    """Number of the note, from 1."""
    start_s: float
    seconds: float
    expected_s: float
    """Estimate for the same tokens; NaN: there is no estimator."""
    requests: int
    rounds: int
    """Requests that were rounds; the others were pieces of prompts."""
    waiting: int
    """Requests that waited when the pass was planned, its own included."""
    new: int
    """Tokens computed."""
    cached: int
    """Tokens found in the prefix cache."""


class SessionRow(NamedTuple):
    """The state of a session."""

    ue: int
    place: int
    session: int
    protocol: str
    state: str
    """ue: drafting, or on the link; bs: waiting for the engine, or in a pass; hidden: the BS waits for hidden states;
    alone: the target decodes without drafts; stream: it decodes, and windows join; waits: it waits for such windows."""
    threshold: float
    promise_tps: float | None
    begun_s: float | None
    """Start of its first round, on the server's clock."""
    tokens: int
    """Committed since then."""
    rounds: int
    drafted: int
    accepted: int
    judged: int
    window: int
    """Tokens of its last window."""
    hint: int
    """Window hinted last; -1: none."""
    csi: Csi | None
    """Channel state of its last window."""
    ahead: int
    """Tokens of windows that came ahead."""
    used: int
    """Those of them that passes verified."""
    void: int
    """Those of them that were dropped without a pass."""
    overlap_s: float
    """Sum over its rounds, see `RoundNote.overlap_s`."""
    hint_protocol: str = ""
    """Protocol hinted last; empty: none."""
    weight: float | None = None
    """Weight on the radio that a controller of the cell decided; None: none did."""
    hint_lookahead: int = NO_HINT
    """Lookahead hinted last; -1: none."""


class RecentActivity(msgspec.Struct, array_like=True, frozen=True):
    """Recent rounds and passes, and all sessions, in compact form."""

    now_s: float
    sessions: int
    rows: list[Any]
    """One `SessionRow` per session, or the list of its fields."""
    rounds: bytes
    """Packed; see `record_ring.rounds`."""
    passes: bytes
    """Packed; see `record_ring.passes`."""
    words: list[tuple[list[int], str]]
    """Tokens and marks of the rounds; empty unless text is shown."""


class RoundSums(NamedTuple):
    """Sums over all rounds so far."""

    drafted: int
    accepted: int
    committed: int
    judged: int
    seconds: dict[str, float]
    """Time by part of a round."""
    times: list[int]
    """Histogram of times at the BS over `recent.BOUNDS_S`; the last bin holds those beyond."""
    time_s: float
    """Sum of these times."""
    ahead: int = 0
    used: int = 0
    overlap_s: float = 0.0
