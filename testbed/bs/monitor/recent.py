"""Recent activity of a base station: bounded rings of rounds and passes, sums, and the state of sessions.

A round or pass is noted in constant time, as numbers in preallocated memory; notes are processed only when the live
view asks. Everything runs on the server's event loop, without locks.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from testbed.bs.monitor.record_ring import PASS, ROUND, Ring, columns
from testbed.bs.observer import FinishedPass, Observer, RecentActivity, RoundSums, SessionRow
from testbed.bs.pending import Round
from testbed.bs.scheduling.averages import MOST_TIME_S
from testbed.bs.sessions import Session, SessionTable
from testbed.channel.csi import Csi
from testbed.protocols import TARGET_ONLY
from testbed.protocols.messages import NO_HINT, Verdict

RING = 1024
"""Rounds, and passes, that are kept."""
MOST_ROWS = 256
"""Sessions that are shown."""
MOST_UES = 4096
"""UEs that keep their number; beyond, the least recently seen one gets a new number."""
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of rounds' times at the BS."""
COUNTS = ("drafted", "accepted", "committed", "judged", "ahead", "used")
PARTS = ("draft", "link", "queue", "verify", "hidden", "judge")
"""Parts of a round's time, in the order of `RoundNote`."""


@dataclass(slots=True)
class _UeNumber:
    """Number of a peer, and the places of its sessions."""

    number: int
    since_s: float
    """Time of its first note."""
    taken: set[int] = field(default_factory=set)
    stated_s: dict[str, float] = field(default_factory=dict)
    """Sums of the times that it stated, by what they are."""

    def possible_s(self, what: str, time_s: float, now_s: float) -> float:
        """A time that the UE states: all together no more than its sessions have had, and `MOST_TIME_S` before its
        first note. Otherwise one UE could ruin the sums over all.
        """
        before_s = self.stated_s.get(what, 0.0)
        had_s = MOST_TIME_S + max(1, len(self.taken)) * (now_s - self.since_s)
        time_s = min(time_s, max(0.0, had_s - before_s))
        self.stated_s[what] = before_s + time_s
        return time_s


@dataclass(slots=True)
class _Track:
    """Additional state of a session."""

    ue: _UeNumber
    number: int
    """Number of the UE."""
    place: int
    session: int
    shown: int
    """Tokens of the session that were noted, or that it was opened with."""
    told_s: float = math.nan
    """Time of its last verdict."""
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    judged: int = 0
    window: int = 0
    kind: str = ""
    """Protocol of the last window; empty: there was none."""
    hint: int = NO_HINT
    hint_protocol: str = ""
    hint_lookahead: int = NO_HINT
    csi: Csi | None = None
    ahead: int = 0
    used: int = 0
    overlap_s: float = 0.0
    new: int = 0
    drafting_s: float = 0.0
    """Tokens of windows that came ahead since the last note, and their drafting time."""


class Recent(Observer):
    """Keeps recent rounds and passes for the live view.

    Args:
        sessions: all sessions of the base station.
        text: whether notes hold the committed tokens.
        weight: of a session's UE on the radio; None: no controller decides it.
    """

    def __init__(
        self, sessions: SessionTable, *, text: bool = False, weight: Callable[[Session], float | None] | None = None
    ) -> None:
        self._sessions, self._text, self._weight = sessions, text, weight
        self._rounds, self._passes = Ring(ROUND, RING), Ring(PASS, RING)
        self._words: deque[tuple[list[int], str]] = deque(maxlen=RING)
        self._session_count = self._ue_count = 0
        self._tracks: dict[str, _Track] = {}
        self._ues: OrderedDict[bytes, _UeNumber] = OrderedDict()
        self._tallied = 0
        """Rounds included in the sums below."""
        self._counts = np.zeros(len(COUNTS), np.int64)
        self._seconds = np.zeros(len(PARTS) + 2)
        self._times = np.zeros(len(BOUNDS_S) + 1, np.int64)

    # ------------------------------------------------------------ notes

    def came_ahead(self, session: Session, tokens: int, draft_s: float) -> None:
        """Note a window."""
        track = self._tracks.get(session.name) or self._begin(session)
        track.ahead += tokens
        track.new += tokens
        track.drafting_s += track.ue.possible_s("ahead", draft_s, session.heard_s)

    def round(self, session: Session, round_: Round, verdict: Verdict) -> None:
        """Note a round."""
        track = self._tracks.get(session.name) or self._begin(session)
        drafted, accepted, bs_s = len(round_.window.ids), verdict.accepted, verdict.bs_s
        committed = accepted + (verdict.token >= 0)
        judged = verdict.kept if verdict.kept and session.protocol is not None and session.protocol.judged else 0
        arrived_s, waited_s = round_.arrived_s, round_.waited_s
        draft_s = track.ue.possible_s("draft", round_.draft_s, session.heard_s)
        end_s = arrived_s + waited_s + bs_s
        link_s = max(arrived_s - track.told_s - draft_s, 0.0) if drafted else math.nan  # NaN stays NaN
        ahead, used, overlap_s = _overlap(track, session, round_)
        track.told_s, track.window = end_s, drafted
        track.hint, track.hint_protocol, track.hint_lookahead = verdict.window, verdict.protocol, verdict.lookahead
        if drafted and session.protocol is not None:
            track.kind = session.protocol.carried(("hidden",) if round_.hidden_came else ()).kind
        track.rounds += 1
        track.drafted += drafted
        track.accepted += accepted
        track.judged += judged
        if round_.csi is not None:
            track.csi = round_.csi
        if self._text:
            self._words.append(self._spoken(session, round_, track, accepted, committed))
        self._rounds.add(
            track.number, track.place, track.session, round_.number, arrived_s, end_s, draft_s, link_s, round_.queue_s,
            round_.verify_s, waited_s, verdict.judge_s, drafted, accepted, committed, judged, round_.batch_size, ahead,
            used, overlap_s, bs_s,
        )  # fmt: skip
        if self._rounds.count - self._tallied == RING:
            self._tally()

    def passed(self, done: FinishedPass) -> None:
        """Note a pass."""
        new = cached = 0
        for work in done.works:
            new += work.new
            cached += work.cached
        expected_s = math.nan if done.expected_s is None else done.expected_s
        self._passes.add(
            done.start_s, done.seconds, expected_s, len(done.works), done.rounds, done.waiting, new, cached
        )

    def ended(self, session: Session) -> None:
        """Free a session's place."""
        track = self._tracks.pop(session.name, None)
        if track is not None:
            track.ue.taken.discard(track.place)

    # ------------------------------------------------------------ looks

    def look(self, rounds: int, passes: int, now_s: float) -> RecentActivity:
        """Recent activity.

        Args:
            rounds: number of the last round that the viewer has; those after it are returned, as far as they are kept.
            passes: the same for passes.
            now_s: time on the server's clock.
        """
        fresh = min(max(0, self._rounds.count - rounds), len(self._words))
        return RecentActivity(
            now_s,
            len(self._sessions),
            [self._row(session) for session in itertools.islice(self._sessions, MOST_ROWS)],
            self._rounds.since(rounds),
            self._passes.since(passes),
            list(itertools.islice(self._words, len(self._words) - fresh, None)),
        )

    def tally(self) -> RoundSums:
        """Sums so far."""
        self._tally()
        *seconds, overlap_s, time_s = self._seconds.tolist()
        drafted, accepted, committed, judged, ahead, used = self._counts.tolist()
        parts = dict(zip(PARTS, seconds, strict=True))
        times = self._times.tolist()
        return RoundSums(drafted, accepted, committed, judged, parts, times, time_s, ahead, used, overlap_s)

    # ------------------------------------------------------------ inside

    def _begin(self, session: Session) -> _Track:
        """Give a new session its place."""
        peer = session.key[0]
        ue = self._ues.get(peer)
        if ue is None:
            self._ue_count += 1
            ue = self._ues[peer] = _UeNumber(self._ue_count, session.heard_s)
            if len(self._ues) > MOST_UES:
                self._ues.popitem(last=False)
        self._ues.move_to_end(peer)
        place = next(i for i in itertools.count() if i not in ue.taken)
        ue.taken.add(place)
        self._session_count += 1
        track = _Track(ue, ue.number, place, self._session_count, session.length - session.got)
        self._tracks[session.name] = track
        return track

    def _spoken(
        self, session: Session, round_: Round, track: _Track, accepted: int, committed: int
    ) -> tuple[list[int], str]:
        """The tokens committed since the last note, and a mark for each. The round's own may be preceded by one that
        the UE drew after its last window.
        """
        tokens: list[int] = session.tokens[track.shown : session.length].tolist()
        track.shown = session.length
        marks = ["d"] * accepted
        if session.protocol is not None and session.protocol.judged:
            for position in round_.candidates():
                if position < accepted:
                    marks[position] = "j"
        before = "t" * (len(tokens) - committed)
        return tokens, (before + "".join(marks)).ljust(len(tokens), "t")

    def _tally(self) -> None:
        """Add the rounds since the last call to the sums."""
        fresh = columns(self._rounds.since(self._tallied))
        self._tallied = self._rounds.count
        self._counts += [fresh[name].sum() for name in COUNTS]
        self._seconds += [np.nansum(fresh[name]) for name in (*(f"{part}_s" for part in PARTS), "overlap_s", "bs_s")]
        self._times += np.bincount(np.searchsorted(BOUNDS_S, fresh["bs_s"]), minlength=len(self._times))

    def _row(self, session: Session) -> SessionRow:
        track = self._tracks.get(session.name) or self._begin(session)
        kind = TARGET_ONLY if session.protocol is None else track.kind or session.protocol.kind
        waiting = sum(len(round_.window.ids) for round_ in session.held)
        return SessionRow(
            track.number, track.place, track.session, kind, _state(session), session.threshold, session.speed_tps,
            session.begun_s, session.got, track.rounds, track.drafted, track.accepted, track.judged, track.window,
            track.hint, track.csi, track.ahead, track.used, max(0, track.ahead - track.used - waiting), track.overlap_s,
            track.hint_protocol, None if self._weight is None else self._weight(session), track.hint_lookahead,
        )  # fmt: skip


def _overlap(track: _Track, session: Session, round_: Round) -> tuple[int, int, float]:
    """See `RoundNote`: tokens that came ahead since the last note, tokens used of them in this round, and its overlap.

    A UE that does not draft ahead takes the drafting time and the link's from one verdict to the next window's arrival.
    Where less time passes, the rest had passed before the verdict.
    """
    new, spent_s, gap_s = track.new, track.drafting_s, round_.arrived_s - track.told_s
    track.new, track.drafting_s, used, overlap_s = 0, 0.0, 0, 0.0
    if round_.guess is not None or round_.draft is not None:
        used = min(len(round_.window.ids), track.ahead - track.used)
    if session.stream:
        overlap_s = max(0.0, spent_s - max(0.0, gap_s - round_.network_s))
    elif round_.guess is not None:
        overlap_s = max(0.0, round_.draft_s + round_.network_s - gap_s)
    track.used += used
    overlap_s = track.ue.possible_s("overlap", overlap_s, session.heard_s)
    track.overlap_s += overlap_s
    return new, used, overlap_s


def _state(session: Session) -> str:
    """See `SessionRow.state`."""
    if session.stream:
        return "waits" if session.paused else "stream"
    if session.alone:
        return "alone"
    if session.current is None:
        return "ue"
    return "hidden" if session.current.asking else "bs"
