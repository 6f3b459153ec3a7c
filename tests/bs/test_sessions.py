"""The BS's memory of sessions: their prefixes, the bounds, and who may name what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from testbed.bs.engines.base import VerifyResult
from testbed.bs.engines.fairness import owner
from testbed.bs.pending import Round
from testbed.bs.sessions import Key, Session, SessionTable
from testbed.protocols import protocol
from testbed.protocols.base import Window

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=300)


def opened(
    table: SessionTable, key: Key = (b"ue", 1), prefix: list[int] | None = None, speed_tps: float | None = None
) -> Session:
    ids = np.array(prefix or [1, 2, 3], np.int32)
    return table.open(key, ids, protocol("fh"), 0.25, 96, 0, speed_tps=speed_tps)


@given(prompt=IDS.filter(bool), chunks=st.lists(IDS, max_size=6))
def test_a_prefix_is_everything_committed_in_order(prompt: list[int], chunks: list[list[int]]) -> None:
    session = opened(SessionTable(), prefix=prompt)
    ids = list(prompt)
    for chunk in chunks:
        session.append(np.array(chunk, np.int32))
        ids += chunk
        assert session.prefix.tolist() == ids
        assert session.length == len(ids)
    assert session.prefix.dtype == np.int32


def test_a_prefix_in_use_by_the_engine_does_not_change_under_it() -> None:
    prompt = np.array([1, 2, 3], np.int32)
    session = SessionTable().open((b"ue", 1), prompt, None, 0.0, 1, 8)
    prefix = session.prefix
    session.append(np.array([4], np.int32))
    session.tokens[0] = 9
    assert prefix.tolist() == prompt.tolist() == [1, 2, 3]


def test_candidates_are_the_positions_that_differ_from_the_argmax() -> None:
    zeros = np.zeros(5, np.float32)
    result = VerifyResult(np.array([5, 1, 7, 8, 2], np.int32), zeros, zeros[1:])
    round_ = Round(0, Window(np.array([5, 6, 7, 2], np.int32), None), None, 0.0, result=result)
    assert round_.candidates() == [1, 3]


def test_a_session_keeps_what_it_was_opened_with() -> None:
    session = SessionTable().open((b"ue", 7), np.array([4], np.int32), protocol("sh"), 0.5, 96, 12)
    assert (session.key, session.protocol, session.threshold) == ((b"ue", 7), protocol("sh"), 0.5)
    assert (session.drafter_hidden, session.wanted, session.computed, session.last_round) == (96, 12, 0, -1)


def test_opening_again_starts_anew_under_another_name() -> None:
    table = SessionTable()
    first = opened(table)
    first.computed = 3
    second = opened(table)
    assert table.get((b"ue", 1)) is second
    assert len(table) == 1
    assert first.name != second.name
    assert second.computed == 0


def test_no_peer_can_name_anothers_session() -> None:
    table = SessionTable()
    mine, other = opened(table, (b"ue-a", 1)), opened(table, (b"ue-b", 1))
    assert mine.name != other.name
    assert table.close((b"ue-b", 1)) is other
    assert table.get((b"ue-a", 1)) is mine


def test_the_engine_sees_one_owner_for_all_identities_of_a_ue() -> None:
    """Fair shares of the engine's sequences are those of keys: another identity is no other UE."""
    table = SessionTable(owner=lambda peer: peer[:3])
    names = [opened(table, (peer, 1)).name for peer in (b"keyA", b"keyB", b"ownA")]
    first, second, other = map(owner, names)
    assert first == second != other and len(set(names)) == 3


def test_closing_what_is_not_there_is_no_error() -> None:
    assert SessionTable().close((b"ue", 1)) is None


@pytest.mark.parametrize(("per_peer", "total"), [(2, 100), (100, 2)])
def test_a_full_table_still_lets_a_session_be_opened_again(per_peer: int, total: int) -> None:
    table = SessionTable(per_peer, total)
    opened(table, (b"ue", 1))
    assert table.refusal((b"ue", 2), 0) is None
    opened(table, (b"ue", 2))
    assert table.refusal((b"ue", 3), 0) is not None
    assert (table.refusal((b"other", 1), 0) is not None) == (total == 2)
    assert table.refusal((b"ue", 2), 0) is None
    table.close((b"ue", 1))
    assert table.refusal((b"ue", 3), 0) is None


class Table(RuleBasedStateMachine):
    """A table beside a plain set of keys: openings where there is room, closings of anything."""

    PER_PEER, TOTAL = 2, 5
    keys = st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 3))

    def __init__(self) -> None:
        super().__init__()
        self.table = SessionTable(self.PER_PEER, self.TOTAL)
        self.known: dict[Key, float | None] = {}
        self.names: list[str] = []

    @rule(key=keys, speed_tps=st.sampled_from([None, 4.0]))
    def open(self, key: Key, speed_tps: float | None) -> None:
        after = {*self.known, key}
        full = len(after) > self.TOTAL or len([k for k in after if k[0] == key[0]]) > self.PER_PEER
        assert (self.table.refusal(key, 0) is not None) == (full)
        if not full:
            self.names.append(opened(self.table, key, speed_tps=speed_tps).name)
            self.known[key] = speed_tps

    @rule(key=keys)
    def close(self, key: Key) -> None:
        closed = self.table.close(key)
        assert (closed is not None) == (key in self.known)
        self.known.pop(key, None)

    @invariant()
    def same(self) -> None:
        assert len(self.table) == len(self.known)
        assert {key for key in self.known if self.table.get(key) is not None} == set(self.known)
        for ue in (b"a", b"b", b"c"):
            assert {session.key for session in self.table.ues.of(ue)} == {key for key in self.known if key[0] == ue}
        assert self.table.ues.without_guarantee == len({key[0] for key, speed in self.known.items() if speed is None})
        assert len(set(self.names)) == len(self.names)


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=30, stateful_step_count=25)
