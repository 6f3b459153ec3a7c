"""The recent past of a base station: rounds and passes in rings of bounded length, sums, and how sessions stand.

A round or a pass is noted in constant time; more is made of the notes only when somebody looks. All of it runs on the
server's event loop, so that nothing here needs a lock.
"""

from __future__ import annotations

import bisect
import itertools
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from testbed.bs.estimator import Work
from testbed.bs.observer import Look, PassNote, RoundNote, Row, Tally
from testbed.bs.sessions import Round, Session, SessionTable
from testbed.channel.csi import Csi
from testbed.protocols import TARGET_ONLY
from testbed.protocols.messages import NO_HINT, Verdict

RING = 1024
"""Rounds that are remembered, and passes."""
MOST_ROWS = 256
"""Sessions that a look shows."""
MOST_UES = 4096
"""UEs that keep their number; of more, the one seen longest ago gets a new one."""
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the classes of rounds' times at the BS."""
PARTS = ("draft", "link", "queue", "verify", "hidden", "judge")
"""Of a round's time, in the order of `RoundNote`."""
Note = TypeVar("Note", RoundNote, PassNote)


@dataclass(slots=True)
class _Ue:
    """One peer's number, and the places that its sessions hold."""

    number: int
    taken: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Track:
    """What is remembered of a session beside its own fields."""

    ue: _Ue
    place: int
    session: int
    shown: int
    """Tokens of the session that notes have told of, or that it was opened with."""
    told_s: float | None = None
    """When its last verdict was made."""
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    judged: int = 0
    window: int = 0
    hint: int = NO_HINT
    csi: Csi | None = None


class Recent:
    """Implements `Observer`.

    Args:
        sessions: all that are served.
        text: whether notes hold the tokens that were committed.
    """

    def __init__(self, sessions: SessionTable, *, text: bool = False) -> None:
        self._sessions, self._text = sessions, text
        self._rounds: deque[RoundNote] = deque(maxlen=RING)
        self._passes: deque[PassNote] = deque(maxlen=RING)
        self._round_count = self._pass_count = self._session_count = self._ue_count = 0
        self._tracks: dict[str, _Track] = {}
        self._ues: OrderedDict[bytes, _Ue] = OrderedDict()
        self._drafted = self._accepted = self._committed = self._judged = 0
        self._seconds = [0.0] * len(PARTS)
        self._times = [0] * (len(BOUNDS_S) + 1)
        self._time_s = 0.0

    # ------------------------------------------------------------ notes

    def round(self, session: Session, round_: Round, verdict: Verdict) -> None:
        """Note a round."""
        track = self._tracks.get(session.name) or self._begin(session)
        drafted, accepted, bs_s = len(round_.window.ids), verdict.accepted, verdict.bs_s
        committed = accepted + (verdict.token >= 0)
        judged = verdict.kept if session.protocol is not None and session.protocol.judged else 0
        end_s = round_.arrived_s + round_.waited_s + bs_s
        link_s = None
        if track.told_s is not None and drafted:
            link_s = max(0.0, round_.arrived_s - track.told_s - round_.draft_s)
        track.told_s, track.window, track.hint = end_s, drafted, verdict.window
        track.rounds += 1
        track.drafted += drafted
        track.accepted += accepted
        track.judged += judged
        if round_.csi is not None:
            track.csi = round_.csi
        tokens, marks = self._words(session, round_, track, accepted, committed) if self._text else ([], "")
        self._round_count += 1
        note = RoundNote._make((  # a third of the time that the constructor takes
            self._round_count, track.ue.number, track.place, track.session, round_.number, round_.arrived_s, end_s,
            round_.draft_s, link_s, round_.queue_s, round_.verify_s, round_.waited_s, verdict.judge_s,
            drafted, accepted, committed, judged, round_.batch_size, tokens, marks,
        ))  # fmt: skip
        self._rounds.append(note)
        self._add(note, bs_s)

    def passed(
        self, works: Sequence[Work], rounds: int, waiting: int, start_s: float, seconds: float, expected_s: float | None
    ) -> None:
        """Note a pass."""
        self._pass_count += 1
        new, cached = sum(work.new for work in works), sum(work.cached for work in works)
        self._passes.append(
            PassNote(self._pass_count, start_s, seconds, expected_s, len(works), rounds, waiting, new, cached)
        )

    def ended(self, session: Session) -> None:
        """Free a session's place."""
        track = self._tracks.pop(session.name, None)
        if track is not None:
            track.ue.taken.discard(track.place)

    # ------------------------------------------------------------ looks

    def look(self, rounds: int, passes: int, now_s: float) -> Look:
        """How things stand.

        Args:
            rounds: number of the last round's note that the looker has; those after it are shown, as far as they are
                remembered.
            passes: the same for passes.
            now_s: on the server's clock.
        """
        rows = [self._row(session) for session in itertools.islice(self._sessions, MOST_ROWS)]
        return Look(
            now_s,
            len(self._sessions),
            rows,
            _last(self._rounds, self._round_count - rounds),
            _last(self._passes, self._pass_count - passes),
        )

    def tally(self) -> Tally:
        """Sums so far."""
        seconds = dict(zip(PARTS, self._seconds, strict=True))
        counts = (self._drafted, self._accepted, self._committed, self._judged)
        return Tally(*counts, seconds, list(self._times), self._time_s)

    # ------------------------------------------------------------ inside

    def _begin(self, session: Session) -> _Track:
        """Give a session that is new its place."""
        peer = session.key[0]
        ue = self._ues.get(peer)
        if ue is None:
            self._ue_count += 1
            ue = self._ues[peer] = _Ue(self._ue_count)
            if len(self._ues) > MOST_UES:
                self._ues.popitem(last=False)
        self._ues.move_to_end(peer)
        place = next(i for i in itertools.count() if i not in ue.taken)
        ue.taken.add(place)
        self._session_count += 1
        track = _Track(ue, place, self._session_count, session.length - session.got)
        self._tracks[session.name] = track
        return track

    def _words(
        self, session: Session, round_: Round, track: _Track, accepted: int, committed: int
    ) -> tuple[list[int], str]:
        """The tokens that came since the last note, and a mark for each; they are committed already. Before the round's
        own there may be one that the UE drew after its last window.
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

    def _add(self, note: RoundNote, bs_s: float) -> None:
        self._drafted += note.drafted
        self._accepted += note.accepted
        self._committed += note.committed
        self._judged += note.judged
        seconds = self._seconds
        seconds[0] += note.draft_s
        seconds[1] += note.link_s or 0.0
        seconds[2] += note.queue_s
        seconds[3] += note.verify_s
        seconds[4] += note.hidden_s
        seconds[5] += note.judge_s
        self._times[bisect.bisect_left(BOUNDS_S, bs_s)] += 1
        self._time_s += bs_s

    def _row(self, session: Session) -> Row:
        track = self._tracks.get(session.name) or self._begin(session)
        kind = TARGET_ONLY if session.protocol is None else session.protocol.kind
        return Row(
            track.ue.number, track.place, track.session, kind, _state(session), session.threshold, session.speed_tps,
            session.begun_s, session.got, track.rounds, track.drafted, track.accepted, track.judged, track.window,
            track.hint, track.csi,
        )  # fmt: skip


def _state(session: Session) -> str:
    """See `Row.state`."""
    if session.alone:
        return "alone"
    if session.current is None:
        return "ue"
    return "bs" if session.current.asked_s is None else "hidden"


def _last(ring: deque[Note], count: int) -> list[Note]:
    """The last so many notes, or all that are there."""
    return list(ring)[-count:] if count > 0 else []
