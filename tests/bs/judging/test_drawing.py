"""Sampled rounds that are decided a few positions at a time: the same tokens, few rows kept, turns of UEs between."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from testbed.assets.fingerprints import SYNTHETIC
from testbed.bs.engines.base import VerifyResult
from testbed.bs.judging import distributions, long_rounds
from testbed.bs.judging.distributions import ROWS, Drawing, drawn
from testbed.bs.pending import Round
from testbed.bs.sessions import Session
from testbed.protocols import PROTOCOLS
from testbed.protocols.base import Window
from testbed.protocols.messages import Draft, Open, Opened, Verdict
from testbed.protocols.sampling import Probs, Sampling, quantise, warp
from tests.support.stations import VOCAB, client, station

SMALL = 7
"""Vocabulary of rounds without a base station."""


def verified(seed: int, drafted: int, kind: str, sampling: Sampling) -> tuple[Session, Round]:
    """A session and its verified round, with random distributions of both sides."""
    rng = np.random.default_rng(seed)
    p = np.log(rng.dirichlet(np.ones(SMALL), drafted + 1)).astype(np.float32)
    q = np.array([quantise(rng.dirichlet(np.full(SMALL, 3.0))) for _ in range(drafted)]).reshape(drafted, SMALL)
    ids = np.array([rng.choice(np.flatnonzero(row)) for row in q], np.int32)
    told = q if kind == "rejection" else q[np.arange(drafted), ids]
    protocol = PROTOCOLS.get(kind)
    session = Session((b"ue", 1), "ue/1", np.ones(4, np.int32), 3, protocol, 0.0, 1, 0, sampling, seed)
    round_ = Round(seed % 5, Window(ids, None, told), None, 0.0)
    ones = np.ones(drafted + 1, np.float32)
    round_.result = VerifyResult(p.argmax(axis=1).astype(np.int32), ones, ones[:-1], None, p)
    return session, round_


@given(
    st.integers(0, 2**32),
    st.integers(0, 6),
    st.sampled_from(["rejection", "split", "target-only"]),
    st.booleans(),
    st.sampled_from([0, SMALL, 2 * SMALL, 3 * SMALL + 1, 100 * SMALL]),
    st.sampled_from([0.7, 1.0]),
)
def test_a_round_in_parts_is_decided_as_in_one(
    seed: int, drafted: int, kind: str, block: bool, most: int, top_p: float
) -> None:
    sampling = Sampling(1.3, top_p=top_p, block=block and kind == "rejection")
    one = verified(seed, 0 if kind == "target-only" else drafted, kind, sampling)
    drawing, expected, parts = Drawing(*one, SMALL), drawn(*one, SMALL), 0
    while before := drawing.left:
        assert 0 < drawing.part(most) <= max(most, SMALL)
        drawing.choose(most)
        parts += 1
        assert drawing.left < before
    assert drawing.kept is not None and drawing.kept[:2] == expected[:2]
    assert np.array_equal(drawing.kept.target, expected.target)  # type: ignore[arg-type]
    assert parts <= drafted + 1 and (parts == drafted + 1 or not sampling.block or most > SMALL)
    drawing.choose(most)
    assert drawing.kept[:2] == expected[:2]


def test_a_part_reads_no_more_distributions_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a round were kept as double precision until it was decided."""
    rows, read = 40, list[Any]()
    drawing = Drawing(*verified(1, rows - 1, "rejection", Sampling(1.0, block=True)), SMALL)
    monkeypatch.setattr(distributions, "warp", lambda *given: read.append(given) or warp(*given))
    most = 0
    while drawing.left:
        before = len(read)
        drawing.choose(3 * SMALL)
        most = max(most, len(read) - before)
    assert most <= 3 + 1 and rows <= len(read) <= rows + 1 and ROWS == 2


def test_a_round_that_failed_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that fail together are repeated each alone (`apart`)."""
    drawing = Drawing(*verified(1, 3, "rejection", Sampling(1.0, block=True)), SMALL)
    monkeypatch.setattr(distributions, "warp", lambda *_: 1 / 0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            drawing.choose(SMALL)
    assert drawing.kept is None and drawing.left


async def test_ues_take_turns_within_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of 256 tokens was decided in one piece, seconds for a large vocabulary, while the rounds of others
    waited.
    """
    begun, go, read = threading.Event(), threading.Event(), list[float]()

    def held(logits: NDArray[Any], sampling: Sampling) -> Probs:
        begun.set()
        assert go.wait(30)
        read.append(sampling.temperature)
        return warp(logits, sampling)

    monkeypatch.setattr(long_rounds, "MOST_VALUES", 0)
    monkeypatch.setattr(distributions, "warp", held)
    async with station() as (bs, address), client(address) as one, client(address) as other:
        numbers, drafted = [ue.new_session() for ue in (one, other)], (200, 4)
        for ue, number, temperature, size in zip((one, other), numbers, (1.0, 1.5), drafted, strict=True):
            ids = np.arange(1, size + 1, dtype=np.int32)
            q = np.stack([quantise(np.ones(VOCAB) / VOCAB)] * size)
            how = {"temperature": temperature, "block": True, "seed": 1}
            open_ = Open(session=number, protocol="rejection", threshold=0.0, hidden_size=64, drafter=SYNTHETIC, **how)
            await ue.send(open_, {"ids": np.array([1, 2, 3], np.int32)})
            await ue.send(Draft(session=number, round=0, base_len=3), {"ids": ids, "q": q})
            assert await asyncio.to_thread(begun.wait, 30)  # the long one is in the other thread
        try:
            while not bs._long._aside:
                await asyncio.sleep(0.001)
        finally:
            go.set()
        assert isinstance((await other.receive(numbers[1], 15)).message, Opened)
        assert isinstance((await other.receive(numbers[1], 15)).message, Verdict)
        assert 5 <= read.count(1.5) <= 6 and read.count(1.0) < 200  # the long one goes on meanwhile
        assert isinstance((await one.receive(numbers[0], 15)).message, Opened)
        assert isinstance((await one.receive(numbers[0], 15)).message, Verdict)
        assert 201 <= read.count(1.0) <= 202 and bs.load == (0, 0)
