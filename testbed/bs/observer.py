"""The seam for whoever looks on while a base station serves, and what there is to see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from testbed.bs.sessions import Round, Session
from testbed.channel.csi import Csi
from testbed.optim.pass_time import RequestWork
from testbed.protocols.messages import Verdict


class FinishedPass(NamedTuple):
    """An engine pass that is over, as it was measured."""

    works: Sequence[RequestWork]
    """Tokens computed and cached, request by request."""
    rounds: int
    """Requests that were rounds; the others were pieces of prompts."""
    waiting: int
    """Requests that waited when the pass was planned, its own included."""
    evicted: int
    """Tokens expected in the prefix cache and not found there."""
    start_s: float
    """When it was planned, on the server's clock."""
    seconds: float
    expected_s: float | None
    """Its duration as estimated before; None: there is no estimator."""


class Observer(Protocol):
    """Told of every round and pass by the server, in whose way it must not be."""

    def round(self, session: Session, round_: Round, verdict: Verdict) -> None:
        """A round was committed; the verdict is about to be sent."""

    def passed(self, done: FinishedPass) -> None:
        """A pass is over; see `PassNote`."""

    def ended(self, session: Session) -> None:
        """A session was forgotten."""


class Unobserved:
    """Nobody looks on."""

    def round(self, session: Session, round_: Round, verdict: Verdict) -> None:
        """Nothing to do, and so for the others."""

    def passed(self, done: FinishedPass) -> None:
        """Nothing."""

    def ended(self, session: Session) -> None:
        """Nothing."""


class RoundNote(NamedTuple):
    """A round that is over. Times are on the server's clock, durations in seconds."""

    number: int
    """Of the note, from 1."""
    ue: int
    """UEs are numbered from 1, as they come: their identities are nobody else's business."""
    place: int
    """Which of its UE's sessions, from 0; a later session takes the place of one that has ended."""
    session: int
    """Number of the session, counted over all UEs."""
    round: int
    arrived_s: float
    end_s: float
    """When the verdict was made."""
    draft_s: float
    """The UE's own, as its `Draft` says."""
    link_s: float
    """From the last verdict to this window's arrival, less `draft_s`: the way down and the way up together; NaN: not
    known, as of a first round."""
    queue_s: float
    verify_s: float
    hidden_s: float
    """From `NeedHidden` to `Hidden`."""
    judge_s: float
    drafted: int
    accepted: int
    committed: int
    judged: int
    """Mismatches that the judge let stay."""
    batch: int
    """Requests of the pass that verified it."""
    tokens: Sequence[int]
    """Committed since the session's last note; empty unless text is shown."""
    marks: str
    """Of each of `tokens`: d drafted; j drafted, not the target's own, and kept by the judge; t the target's own, or
    drawn by the UE from the target's distribution."""


class PassNote(NamedTuple):
    """A pass that is over."""

    number: int
    """Of the note, from 1."""
    start_s: float
    seconds: float
    expected_s: float
    """The estimate before the pass; NaN: the scheduler has no estimator."""
    requests: int
    rounds: int
    """Requests that were rounds; the others were pieces of prompts."""
    waiting: int
    """Requests that waited when the pass was planned, its own among them."""
    new: int
    """Tokens that it computed."""
    cached: int
    """Tokens that it found in the prefix cache."""


class SessionRow(NamedTuple):
    """How a session stands."""

    ue: int
    place: int
    session: int
    protocol: str
    state: str
    """ue: drafting, or on the link; bs: waiting for the engine, or in a pass; hidden: the BS waits for hidden states;
    alone: the target decodes without drafts."""
    threshold: float
    promise_tps: float | None
    begun_s: float | None
    """When its first round began, on the server's clock."""
    tokens: int
    """Committed since then."""
    rounds: int
    drafted: int
    accepted: int
    judged: int
    window: int
    """Tokens of its last window."""
    hint: int
    """Window that was hinted to it last; -1: none."""
    csi: Csi | None
    """As its last window said."""


class RecentActivity(msgspec.Struct, array_like=True, frozen=True):
    """What one look shows, as compact as it is handed over."""

    now_s: float
    sessions: int
    rows: list[Any]
    """Each a `SessionRow`, or the list of its fields."""
    rounds: bytes
    """See `notes.rounds`."""
    passes: bytes
    """See `notes.passes`."""
    words: list[tuple[list[int], str]]
    """Tokens and marks of the rounds; empty unless text is shown."""


class RoundSums(NamedTuple):
    """Sums over all rounds so far."""

    drafted: int
    accepted: int
    committed: int
    judged: int
    seconds: dict[str, float]
    """By part of a round."""
    times: list[int]
    """Rounds by time at the BS: see `recent.BOUNDS_S`; the last are those beyond."""
    time_s: float
    """Sum of these times."""
