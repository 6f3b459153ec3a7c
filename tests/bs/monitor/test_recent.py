"""Rounds shown to viewers, compared with the records of the UEs and with times that are known exactly."""

from __future__ import annotations

import asyncio
import math
import struct
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from testbed.bs.judging.base import Candidates, StrictJudge
from testbed.bs.monitor.recent import BOUNDS_S, MOST_ROWS, MOST_UES, PARTS, RING, Recent
from testbed.bs.monitor.record_ring import Ring, passes, rounds
from testbed.bs.observer import FinishedPass
from testbed.bs.pending import Round
from testbed.bs.scheduling.averages import MOST_TIME_S
from testbed.bs.scheduling.base import Fcfs
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.slo import Slo
from testbed.bs.sessions import Session, SessionTable
from testbed.channel.csi import Csi
from testbed.experiments.inputs.profile import InteractionVerify
from testbed.optim.pass_time import Coefficients, RequestWork
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.base import Window
from testbed.protocols.messages import NO_HINT, Verdict
from testbed.synthetic import next_token
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession as UeSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.fleet import Fleet, serve_fleet
from tests.support.stations import VOCAB, client, station

PROMPT = [3, 1, 4, 1, 5]
CSI = Csi(20.0, 50.0, 30.0, per_up=0.01)
NOTHING = np.zeros(0, np.int32)


class KeepAll(StrictJudge):
    """Keeps every mismatch."""

    def judge(self, batch: Sequence[Candidates]) -> list[NDArray[np.bool_]]:
        return [np.ones(len(c.draft_ids), np.bool_) for c in batch]


async def decode(connection: Client, kind: str, tokens: int = 40, **how: object) -> RequestRecord:
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    session = UeSession(connection, drafter, protocol(kind), FixedWindow(6), csi=lambda: CSI, **how)  # type: ignore[arg-type]
    return await session.decode(PROMPT, tokens, ())


@pytest.mark.parametrize("kind", list(PROTOCOLS))
async def test_notes_of_rounds_are_what_the_ue_recorded(kind: str) -> None:
    sessions = SessionTable()
    recent = Recent(sessions, text=True)
    async with station(sessions=sessions, observer=recent) as (_, address), client(address) as connection:
        record = await decode(connection, kind)
        notes = rounds(recent.look(0, 0, 0.0))
    assert [(n.round, n.drafted, n.accepted) for n in notes] == [
        (i, r.drafted, r.accepted) for i, r in enumerate(record.rounds)
    ]
    assert [math.isnan(n.link_s) for n in notes] == [True] + [False] * (len(notes) - 1)
    spoken = [token for note in notes for token in note.tokens]
    unheard = int(notes[-1].committed < record.rounds[-1].committed)  # that the UE drew after its last window
    assert spoken[: len(record.token_ids)] == record.token_ids[: len(record.token_ids) - unheard]
    for note in notes:
        assert len(note.marks) == len(note.tokens) and note.marks.count("d") == note.accepted and note.judged == 0
        assert note.arrived_s <= note.end_s and min(note.queue_s, note.verify_s, note.judge_s, note.draft_s) >= 0


async def test_marks_tell_what_the_judge_kept_from_what_the_target_would_have_said() -> None:
    sessions = SessionTable()
    recent = Recent(sessions, text=True)
    async with station(judge=KeepAll(), sessions=sessions, observer=recent) as (_, address), client(address) as ue:
        record = await decode(ue, "fh", threshold=0.5)
        notes = rounds(recent.look(0, 0, 0.0))
    ids, marks = list(PROMPT), "".join(note.marks for note in notes)
    for token, mark in zip(record.token_ids, marks, strict=False):
        own = next_token(ids, VOCAB, 0)
        assert (mark == "j") == (token != own)
        ids.append(token)
    assert sum(note.judged for note in notes) == marks.count("j") > 0
    assert recent.tally().judged == marks.count("j")


async def test_without_leave_no_token_is_remembered() -> None:
    sessions = SessionTable()
    recent = Recent(sessions)
    async with station(sessions=sessions, observer=recent) as (_, address), client(address) as connection:
        await decode(connection, "greedy")
    assert all(note.tokens == [] and note.marks == "" for note in rounds(recent.look(0, 0, 0.0)))


async def test_rows_show_how_sessions_stand_and_ues_keep_number_and_place() -> None:
    sessions = SessionTable()
    recent = Recent(sessions)
    watched = station(sessions=sessions, observer=recent)
    async with watched as (_, address), client(address) as first, client(address) as second:
        record = await decode(first, "sh", threshold=0.0)
        await decode(second, "greedy")
        await decode_remotely(first, PROMPT, 7, ())
        while len(sessions):
            await asyncio.sleep(0.01)
        look = recent.look(0, 0, 0.0)
    notes = rounds(look)
    assert look.rows == []
    assert {(n.ue, n.place, n.session) for n in notes} == {(1, 0, 1), (2, 0, 2), (1, 0, 3)}
    assert sum(n.committed for n in notes if n.session == 1) == len(record.token_ids)
    assert [math.isnan(n.link_s) for n in notes if n.session == 3] == [True] * 7


def opened(table: SessionTable, number: int, peer: bytes = b"ue") -> Session:
    return table.open((peer, number), np.arange(5, dtype=np.int32), protocol("greedy"), 0.0, 8, 0)


def one(drafted: int = 4, arrived_s: float = 1.0, draft_s: float = 0.0) -> Round:
    window = Window(np.zeros(drafted, np.int32), None)
    return Round(0, window, CSI if drafted else None, arrived_s, draft_s=draft_s)


def told(accepted: int = 2, bs_s: float = 0.01) -> Verdict:
    return Verdict(
        session=0, round=0, accepted=accepted, token=1, candidates=0, queried=0, gap=0.0, batch_size=3, queue_s=0.001,
        verify_s=0.004, judge_s=0.0, bs_s=bs_s, window=5,
    )  # fmt: skip


def test_a_row_by_hand() -> None:
    table = SessionTable()
    recent, session = Recent(table), opened(table, 0)
    other = opened(table, 1)
    recent.round(session, one(), told())
    recent.round(session, one(arrived_s=1.5, draft_s=0.2), told(3))
    session.current = one()
    mine, idle = recent.look(0, 0, 2.0).rows
    assert (mine.ue, mine.place, mine.session, mine.protocol, mine.state) == (1, 0, 1, "greedy", "bs")
    assert (mine.rounds, mine.drafted, mine.accepted, mine.window, mine.hint, mine.csi) == (2, 8, 5, 4, 5, CSI)
    assert (idle.ue, idle.place, idle.session, idle.state, idle.rounds, idle.csi) == (1, 1, 2, "ue", 0, None)
    assert rounds(recent.look(0, 0, 2.0))[1].link_s == pytest.approx(1.5 - 1.01 - 0.2)
    recent.ended(session)
    table.close(session.key)
    opened(table, 2)
    assert [(row.place, row.session) for row in recent.look(0, 0, 2.0).rows] == [(1, 2), (0, 3)]
    recent.ended(other)
    recent.ended(other)


def test_drafting_times_count_up_to_the_time_that_a_ue_has_had() -> None:
    """Ten windows of one UE added ten days to the sums over all."""
    table = SessionTable()
    recent = Recent(table)
    for number in range(10):
        session = opened(table, number // 5)
        table.hear(session.key, 0.1 * number)
        recent.came_ahead(session, 4, 86_400.0)
        round_ = one(arrived_s=0.1 * number, draft_s=86_400.0)
        round_.guess, round_.network_s = 1, 86_400.0
        recent.round(session, round_, told())
    tally = recent.tally()
    assert max(tally.seconds["draft"], tally.overlap_s) <= MOST_TIME_S + 10 * 0.9  # of ten open sessions


def test_a_slow_device_that_computed_the_prompt_before_it_opened_the_session_is_believed() -> None:
    table = SessionTable()
    recent, now_s = Recent(table), 0.0
    for number in range(30):
        session = opened(table, number)
        now_s += 9.0
        table.hear(session.key, now_s)
        recent.round(session, one(arrived_s=now_s, draft_s=8.0), told())
        recent.ended(session)
        table.close(session.key)
    assert recent.tally().seconds["draft"] == pytest.approx(240.0)


def test_rows_show_what_a_controller_decided() -> None:
    """The protocol and lookahead hinted last, and the radio's weight at the time of the look."""
    table = SessionTable()
    weights = {b"ue": 0.5}
    recent = Recent(table, weight=lambda session: weights.get(session.key[0]))
    session = opened(table, 0)
    (row,) = recent.look(0, 0, 1.0).rows
    assert (row.hint_protocol, row.weight, row.hint_lookahead) == ("", 0.5, NO_HINT)
    recent.round(session, one(), msgspec.structs.replace(told(), protocol="fh", lookahead=1))
    weights[b"ue"] = 2.5
    (row,) = recent.look(0, 0, 2.0).rows
    assert (row.hint_protocol, row.weight, row.hint_lookahead) == ("fh", 2.5, 1)


def test_a_look_shows_what_came_since_the_last_one_and_no_more_than_a_ring() -> None:
    table = SessionTable()
    recent, session = Recent(table), opened(table, 0)
    for i in range(RING + 50):
        recent.round(session, one(), told(bs_s=0.02 if i % 2 else 3.0))
        recent.passed(FinishedPass([RequestWork(5, 100), RequestWork(1, 7)], 1, 9, 0, float(i), 0.5, None))
    last = RING + 50
    look = recent.look(0, 0, 0.0)
    assert (len(rounds(look)), len(passes(look))) == (RING, RING)
    assert [note.number for note in rounds(recent.look(last - 3, 0, 0.0))] == [last - 2, last - 1, last]
    nothing = recent.look(last, last, 0.0)
    assert (nothing.rounds, nothing.passes, nothing.words) == (b"", b"", [])
    (note,) = passes(recent.look(last, last - 1, 0.0))
    assert note[:3] + note[4:] == (last, last - 1.0, 0.5, 2, 1, 9, 6, 107) and math.isnan(note.expected_s)
    tally = recent.tally()
    assert (tally.drafted, tally.accepted, tally.committed) == (4 * last, 2 * last, 3 * last)
    assert sum(tally.times) == last and len(tally.times) == len(BOUNDS_S) + 1
    assert tally.times[BOUNDS_S.index(0.025)] == tally.times[BOUNDS_S.index(5.0)] == last // 2
    assert tally.time_s == pytest.approx(last * 1.51)
    assert tally.seconds["verify"] == 0 and set(tally.seconds) == set(PARTS)


def test_what_is_remembered_of_ues_and_shown_of_sessions_is_bounded() -> None:
    table = SessionTable(total=2 * MOST_UES)
    recent = Recent(table)
    for i in range(MOST_UES + 10):
        session = opened(table, 0, i.to_bytes(2, "big"))
        recent.round(session, one(0), told(0))
        if i >= MOST_ROWS + 20:
            recent.ended(session)
            table.close(session.key)
    assert len(recent.look(0, 0, 0.0).rows) == MOST_ROWS
    assert len(recent._ues) == MOST_UES
    assert len(recent._tracks) == MOST_ROWS + 20


def test_times_of_the_link_are_those_of_the_link() -> None:
    fleet = Fleet(
        verify=InteractionVerify(a_s=0, b_compute_s=0, b_read_s=0, c_s=0.03), draft_s=0.02, network_s=0.04, window=5,
        prompt=(50, 50), output=(40, 40), spread_s=0, until_s=0.5,
    )  # fmt: skip
    recent = Recent(SessionTable())
    serve_fleet(fleet, [None], Fcfs(), observer=recent)
    notes = [note for note in rounds(recent.look(0, 0, 0.0)) if not math.isnan(note.link_s)]
    assert len(notes) > 3
    for note in notes:
        assert (note.link_s, note.verify_s) == (pytest.approx(0.04), pytest.approx(0.03))
        assert note.draft_s == pytest.approx(0.02 * note.drafted)


def test_passes_come_with_what_was_expected_of_them() -> None:
    exact = Coefficients(0.0, 0.0, 0.0, 0.03)
    fleet = Fleet(
        verify=InteractionVerify(a_s=0, b_compute_s=0, b_read_s=0, c_s=0.03), prompt=(50, 50), output=(20, 20),
        spread_s=0, until_s=0.5,
    )  # fmt: skip
    recent = Recent(SessionTable())
    serve_fleet(fleet, [4.0] * 3, Slo(coefficients=exact), observer=recent, estimator=OnlineEstimator(exact))
    look = recent.look(0, 0, 0.0)
    notes = passes(look)
    assert sum(note.rounds for note in notes) == len(rounds(look))
    assert all(
        note.expected_s == pytest.approx(0.03, rel=0.2) and note.seconds == pytest.approx(0.03) for note in notes
    )
    assert max(note.requests for note in notes) > 1 and all(note.waiting >= note.requests for note in notes)


def test_a_ring_gives_back_the_last_records_however_it_turns() -> None:
    layout, seen = struct.Struct("<2q"), []
    ring = Ring(layout, 4)
    for value in range(11):
        ring.add(value * value)
        seen.append((value + 1, value * value))
        for number in range(ring.count + 2):
            kept = [record for record in seen[-4:] if record[0] > number]
            assert list(layout.iter_unpack(ring.since(number))) == kept, (value, number)


def test_a_thousand_rounds_and_ten_looks_a_second_cost_less_than_a_fiftieth_of_a_core() -> None:
    """64 UEs' rounds on engines with models are some hundred a second; benchmarks/monitor.py measures the whole."""
    table = SessionTable()
    recent, ues = Recent(table), [opened(table, 0, bytes([number])) for number in range(64)]
    round_, verdict, costs_s = one(), told(), []
    for _ in range(10):
        begun_s = time.thread_time()
        for i in range(1000):
            recent.round(ues[i % 64], round_, verdict)
        for i in range(10):
            msgspec.msgpack.encode(recent.look(recent._rounds.count - 100, 0, float(i)))
        costs_s.append(time.thread_time() - begun_s)
    assert min(costs_s) < 0.02
