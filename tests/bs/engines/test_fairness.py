"""Fair shares of an engine's sequences: a UE that crowds the engine takes nothing from others within their share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bs.engines import batched
from testbed.bs.engines.batched import BatchedEngine
from testbed.bs.engines.fairness import fair_share, owner, to_evict
from testbed.bs.engines.llama import LlamaEngine
from testbed.bs.engines.transformers import TransformersEngine
from tests.bs.oracle import ask
from tests.support.models import TOKENS

PLACES = 4
OTHERS = ("bb/1/8", "cc/1/9")
STEPS = st.lists(st.tuples(st.permutations(range(8)), st.integers(0, 8), st.sets(st.sampled_from(OTHERS))), max_size=12)
"""Sessions of the crowding UE that send their next round if they wait for none, and sessions of others that do."""


@pytest.fixture(scope="module", params=["llama", "transformers"])
def engine(
    request: pytest.FixtureRequest, random_ggufs: dict[str, Path], random_models: dict[str, Path]
) -> Iterator[BatchedEngine]:
    made: BatchedEngine
    if request.param == "llama":
        made = LlamaEngine(random_ggufs["llama"], vocab_size=TOKENS, max_sessions=PLACES, threads=1, chunk_tokens=16)
    else:
        made = TransformersEngine(random_models["llama"], vocab_size=TOKENS, max_sessions=PLACES, device="cpu")
    yield made
    made.close()


class Talks:
    """Sessions that send a round each when told to, and grow by a token a round."""

    def __init__(self, engine: BatchedEngine) -> None:
        self._engine, self.waiting, self.computed = engine, set[str](), Counter[str]()
        self._lengths: dict[str, int] = {}
        self.lost = Counter[str]()
        """Tokens that were computed again."""

    def send(self, session: str) -> None:
        if session not in self.waiting:
            self.waiting.add(session)
            length = self._lengths.setdefault(session, 5 + 7 * (sum(session.encode()) % 3))
            self._engine.submit(ask(session, [3] * length, hidden=False, logprobs=False))

    def step(self) -> list[str]:
        """One pass; returns its sessions."""
        shares = self._engine.step()
        for request, new, cached, result, _ in shares:
            self.lost[request.session] += max(0, self.computed[request.session] - cached)  # texts may be known before
            self.computed[request.session] = cached + new
            if result is not None:
                self.waiting.remove(request.session)
                self._lengths[request.session] += 1
        return [share.request.session for share in shares]

    def end(self) -> None:
        for session in self._lengths:
            self._engine.release(session)


@given(steps=STEPS)
@settings(max_examples=40)
def test_sessions_within_their_share_lose_nothing(
    engine: BatchedEngine, steps: list[tuple[list[int], int, set[str]]]
) -> None:
    """Three UEs share four sequences, and two have one session each; all rounds are finished in the end."""
    talks = Talks(engine)
    try:
        for crowd, count, others in steps:
            for number in crowd[:count]:
                talks.send(f"aa/{number}/{number}")
            for session in sorted(others):
                talks.send(session)
            talks.step()
        for _ in range(60):
            talks.step()
        assert not talks.waiting
        assert {session: talks.lost[session] for session in OTHERS} == dict.fromkeys(OTHERS, 0)
    finally:
        talks.end()


def test_a_crowd_beside_one_session(engine: BatchedEngine) -> None:
    """As the audit found it: all sessions send their next round at once, and the other one every third pass."""
    talks = Talks(engine)
    talks.send(OTHERS[0])
    for step in range(24):
        for number in range(8):
            talks.send(f"aa/{number}/{number}")
        if step % 3 == 0:
            talks.send(OTHERS[0])
        assert talks.step()
    assert talks.lost[OTHERS[0]] == 0 < talks.lost["aa/1/1"]
    talks.end()


def test_one_ue_alone_has_all_sequences(random_ggufs: dict[str, Path]) -> None:
    engine = LlamaEngine(random_ggufs["llama"], vocab_size=TOKENS, max_sessions=PLACES, threads=1)
    talks = Talks(engine)
    for _ in range(6):
        for number in range(8):
            talks.send(f"aa/{number}/{number}")
        assert len(talks.step()) == PLACES
    engine.close()


@given(counts=st.lists(st.integers(1, 12), min_size=1, max_size=6), places=st.integers(1, 20))
def test_the_share_is_the_largest_with_which_all_fit(counts: list[int], places: int) -> None:
    sessions = [f"{name}/{number}" for name, count in enumerate(counts) for number in range(count)]
    fitting = [n for n in range(1, places + 1) if sum(min(count, n) for count in counts) <= places]
    assert fair_share(sessions, places) == max(fitting, default=1)


@given(held=st.lists(st.sampled_from("abc"), min_size=1, max_size=9), opening=st.sampled_from("abcd"))
def test_the_owner_of_most_loses_its_oldest(held: list[str], opening: str) -> None:
    sessions = [f"{name}/{place}" for place, name in enumerate(held)]
    lost = to_evict(sessions, f"{opening}/new")
    counts = Counter([*held, opening])
    assert counts[owner(lost)] == max(counts[name] for name in held)
    assert sessions.index(lost) == min(place for place, name in enumerate(held) if counts[name] == counts[owner(lost)])
    assert to_evict(sessions, "new", sessions[:-1]) == sessions[-1]
    assert to_evict(sessions, "new", stale=sessions[-1:]) == sessions[-1]
    assert to_evict(sessions, f"{opening}/new", sessions[:-1], sessions) == sessions[-1]
    most = [session for session in sessions if counts[owner(session)] == counts[owner(lost)]]
    for waiting in (most[:1], most[:-1], most):  # whose rounds a later pass computes
        left = next((session for session in most if session not in waiting), most[0])
        assert to_evict(sessions, f"{opening}/new", waiting=waiting) == left


def test_a_ue_that_is_gone_keeps_no_share(engine: BatchedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sessions stay open until they have been idle for minutes."""
    monkeypatch.setattr(batched, "STALE_PASSES", 20)
    talks = Talks(engine)
    for number in range(3):
        talks.send(f"gone/{number}/{number}")
    while talks.waiting:
        talks.step()
    mine = [f"mine/{number}/{number}" for number in range(PLACES)]
    for _ in range(40):
        for session in mine:
            talks.send(session)
        talks.step()
    while talks.waiting:
        talks.step()
    lost = Counter(talks.lost)
    for _ in range(8):
        for session in mine:
            talks.send(session)
        while talks.waiting:
            talks.step()
    assert talks.lost == lost
    talks.end()


def test_sessions_of_a_ue_that_is_gone_bound_no_pass(engine: BatchedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "STALE_PASSES", 5)
    talks, mine = Talks(engine), [ask(f"mine/{n}/{n}", [3] * 5, hidden=False, logprobs=False) for n in range(PLACES)]
    for number in range(3):
        talks.send(f"gone/{number}/{number}")
    while talks.waiting:
        talks.step()
    assert not engine.held() or engine._fair_share(mine) < engine.max_requests
    for _ in range(12):
        talks.send("mine/0/0")
        talks.step()
    assert engine._fair_share(mine) == engine.max_requests
    talks.end()


def test_results_keep_no_array_of_the_whole_pass(engine: BatchedEngine) -> None:
    """A round that waits kept the distributions of all others of its pass: 880 kB for 7 kB."""
    long = ask("aa/1/1", list(range(1, 60)), [3] * 8)
    results = engine.verify([long, ask("bb/1/2", [5, 6, 7], [3])])
    results += engine.verify([ask("bb/1/2", list(range(1, 90)), [4])])
    for result in results:
        for array in (result.hidden, result.logprobs):
            assert isinstance(array, np.ndarray)
            whole = array if array.base is None else array.base
            held = whole.nbytes if isinstance(whole, np.ndarray) else whole.untyped_storage().nbytes()
            assert held <= array.nbytes
    for session in ("aa/1/1", "bb/1/2"):
        engine.release(session)
