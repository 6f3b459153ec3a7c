"""Requests in and out of the queue, whole and in pieces."""

from __future__ import annotations

import numpy as np

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import Pending, Round
from testbed.bs.queue import Queue
from testbed.bs.sessions import Session, SessionTable
from testbed.protocols.base import Window


def waiting(queue: Queue, *numbers: int) -> list[Session]:
    table = SessionTable()
    sessions = []
    for number in numbers:
        session = table.open((b"ue", number), np.arange(200, dtype=np.int32), None, 0.0, 1, 300)
        request = VerifyRequest(session.name, session.prefix, np.zeros(3, np.int32))
        queue.put(session, Pending(request, float(number), 0))
        sessions.append(session)
    return sessions


def test_what_is_taken_is_gone_and_the_rest_waits_in_order() -> None:
    queue = Queue()
    sessions = waiting(queue, 0, 1, 2, 3)
    items = queue.pending()
    taken = queue.take([items[2], items[0]])
    assert [t.session for t in taken] == [sessions[2], sessions[0]] and all(t.whole for t in taken)
    assert [p.request.session for p in queue.pending()] == [sessions[1].name, sessions[3].name]
    assert len(queue) == 2


def test_a_piece_leaves_its_request_waiting_for_the_rest() -> None:
    queue = Queue()
    session, other = waiting(queue, 0, 1)
    item, behind = queue.pending()
    taken = queue.take([item.piece(64), behind])
    assert [t.whole for t in taken] == [False, True]
    np.testing.assert_array_equal(taken[0].pending.request.prefix, np.arange(64))
    assert len(taken[0].pending.request.draft) == 0
    session.computed = 64
    queue.learn(session)
    (rest,) = queue.pending()
    assert rest.request is item.request and (rest.computed, rest.arrived_s) == (64, 0.0)
    assert queue.take([rest])[0].whole and not len(queue)
    queue.learn(other)  # it waits for nothing: no error
    assert not len(queue)


def test_what_the_engine_has_of_a_prompt_counts_for_its_ue_until_it_is_computed() -> None:
    queue = Queue()
    session, _ = waiting(queue, 0, 1)
    first, _ = queue.pending()
    (taken,) = queue.take([first])
    queue.start(taken)
    assert [one.running_tokens for one in queue.pending()] == [203]
    session.computed = 128  # after a pass
    assert [one.running_tokens for one in queue.pending()] == [75 + 128 // 32]
    queue.taken(first.request, finished=True)
    assert [one.running_tokens for one in queue.pending()] == [0]


def test_dropping() -> None:
    queue = Queue()
    sessions = waiting(queue, 0, 1)
    queue.drop(sessions[0])
    queue.drop(sessions[0])
    assert [p.request.session for p in queue.pending()] == [sessions[1].name]


def test_streams_count_as_no_windows() -> None:
    """Hundreds of them refused the drafts of everybody."""
    queue, table = Queue(), SessionTable(pending=2)
    for number in range(3):
        session = table.open((b"ue", number), np.arange(9, dtype=np.int32), None, 0.0, 1, 300)
        session.alone, ids = number < 2, np.zeros(0, np.int32)
        session.current = Round(0, Window(ids, None), None, 0.0)
        queue.put(session, Pending(VerifyRequest(session.name, session.prefix, ids), 0.0, 0))
        assert table.crowded(queue.load, b"ue") is None
    assert len(queue) == 3 and queue.load == (1, 0)
    queue.take(queue.pending())
    assert not len(queue) and queue.load == (0, 0)


def test_what_waits_is_weighed() -> None:
    queue, table = Queue(), SessionTable(windows_bytes=1500)
    sessions = [table.open((b"ue", n), np.arange(9, dtype=np.int32), None, 0.0, 1, 300) for n in range(2)]
    for session in sessions:
        ids = np.zeros(100, np.int32)
        session.current = Round(0, Window(ids, None, np.zeros((100, 2), np.uint16)), None, 0.0)
        assert table.crowded(queue.load, b"ue") is None
        request = VerifyRequest(session.name, session.prefix, ids)
        for _ in range(2):  # the second time in its own place
            queue.put(session, Pending(request, 0.0, 0))
    assert queue.load == (2, 1600)
    assert table.crowded(queue.load, b"ue") == "windows of 1600 bytes wait for the engine; at most 1500"
    queue.take(queue.pending()[:1])
    assert queue.load == (1, 800)
    for _ in range(2):
        queue.drop(sessions[1])
        assert queue.load == (0, 0)


def test_what_the_engine_has_lost_of_its_requests_is_seen() -> None:
    """A session lost its keys and values while its request waited for room in a pass, and counted as one token."""
    queue = Queue()
    (session,) = waiting(queue, 0)
    queue.start(queue.take(queue.pending())[0])
    session.computed = 199
    assert [one.new_tokens for one in queue.unfinished] == [4]
    queue.see(lambda request: 64)
    assert [one.new_tokens for one in queue.unfinished] == [139]
    queue.see(lambda request: None)  # the engine does not know
    assert [one.new_tokens for one in queue.unfinished] == [4]
