"""Coupled sampling over a real socket, with the synthetic pair: outputs are the target's own samples."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from testbed.bs.judging.base import Candidates, StrictJudge
from testbed.bs.server import BaseStation
from testbed.channel.cost import Sizes
from testbed.noise import exponentials
from testbed.protocols import protocol
from testbed.protocols.base import HEADER_DOWN_BYTES, HEADER_UP_BYTES
from testbed.protocols.messages import Fault, Open
from testbed.protocols.sampling import Sampling
from testbed.synthetic import Peaked, next_token, runner_up, uniform
from testbed.ue.drafters.after import StatesAfter
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.gate import compare
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.registry import WINDOW_RULES
from tests.support.sampled import reference
from tests.support.stations import VOCAB, client, station

KINDS = ("coupled", "greedy", "fh", "sh")
PROMPT = [3, 1, 4, 1, 5]
HOW = Sampling(1.2, 50, 0.95, coupled=True)


@functools.cache
def own_sample(length: int, seed: int = 3, sampling: Sampling = HOW) -> list[int]:
    """The synthetic target's sample, from its definition and the definition of coupled sampling."""
    ids = list(PROMPT)
    for _ in range(length):
        shape = Peaked(next_token(ids, VOCAB, 0), runner_up(ids, VOCAB, 0), VOCAB, uniform(ids, 0, "target"))
        chances = reference(np.log(shape.probs()).tolist(), sampling)
        noise = exponentials(seed, len(ids), VOCAB)
        sums = [math.log(p) - math.log(e) if p else -math.inf for p, e in zip(chances, noise, strict=True)]
        ids.append(int(np.argmax(sums)))
    return ids[len(PROMPT) :]


async def decode(
    address: str, kind: str, window: int = 5, tokens: int = 40, drafter: Drafter | None = None, **how: object
) -> RequestRecord:
    drafter = drafter or SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
    how = {"sampling": HOW, "seed": 3, **how}
    async with client(address) as connection:
        session = DecodingSession(connection, drafter, protocol(kind), FixedWindow(window), **how)  # type: ignore[arg-type]
        return await session.decode(PROMPT, tokens, ())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 2, 8, 64])
@pytest.mark.parametrize("lookahead", [0, 1])
async def test_outputs_are_the_targets_own_sample(kind: str, window: int, lookahead: int) -> None:
    async with station() as (_, address):
        record = await decode(address, kind, window, lookahead=lookahead)
    assert record.token_ids == own_sample(40)
    drafted, accepted = (sum(getattr(r, name) for r in record.rounds) for name in ("drafted", "accepted"))
    assert 0 < accepted < drafted  # else nothing was tried


@pytest.mark.parametrize("sampling", [Sampling(0.5, coupled=True), Sampling(2.5, 3, coupled=True)])
async def test_target_only_streams_the_same_sample(sampling: Sampling) -> None:
    async with station() as (bs, address), client(address) as connection:
        record = await decode_remotely(connection, PROMPT, 40, (), sampling=sampling, seed=9)
        assert record.token_ids == own_sample(40, 9, sampling)
        assert bs.metrics()["passes"] == 40 and {r.batch_size for r in record.rounds} == {1}
        assert (await decode(address, "coupled", sampling=sampling, seed=9)).token_ids == record.token_ids


async def test_sixteen_sessions_at_once_each_have_their_own_noise() -> None:
    async with station() as (_, address):
        jobs = [decode(address, KINDS[i % 4], 1 + i % 7, 24, seed=i) for i in range(16)]
        outputs = [record.token_ids for record in await asyncio.gather(*jobs)]
    assert outputs == [own_sample(24, seed) for seed in range(16)]
    assert len(set(map(tuple, outputs))) == 16


async def test_states_after_tokens_and_windows_that_the_bs_ends_change_nothing() -> None:
    after = StatesAfter(SyntheticDrafter(vocab_size=VOCAB, alpha=0.8))
    async with station() as (_, address):
        assert (await decode(address, "fh", drafter=after)).token_ids == own_sample(40)
        async with client(address) as connection:
            drafter, hinted = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8), WINDOW_RULES["hinted"].make(4, None)
            session = DecodingSession(connection, drafter, protocol("coupled"), hinted, sampling=HOW, seed=3)
            assert (await session.decode(PROMPT, 40, ())).token_ids == own_sample(40)


async def test_a_session_that_the_bs_forgot_gives_the_same_output() -> None:
    forgotten = []

    def forget(bs: BaseStation, record: object) -> None:
        if len(forgotten) < 6:
            forgotten.append(bs._intake.sessions._sessions.popitem())

    async with station() as (bs, address), client(address) as connection:
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
        session = DecodingSession(connection, drafter, protocol("coupled"), FixedWindow(5), sampling=HOW, seed=3)
        record = await session.decode(PROMPT, 40, (), functools.partial(forget, bs))
    assert len(forgotten) == 6 and record.token_ids == own_sample(40)


@pytest.mark.parametrize("kind", ["coupled", "fh", "sh"])
async def test_no_distribution_travels(kind: str) -> None:
    """Every round has the bytes of its greedy counterpart: ids, hidden states, positions."""
    async with station() as (_, address):
        record = await decode(address, kind, 13, 120)
    for r in record.rounds:
        bits = protocol(kind).payload(r.drafted, r.queried, Sizes(hidden_size=64, vocab_size=VOCAB))
        overhead = r.uplink_bytes - bits.uplink_bits / 8
        assert 0 < overhead <= HEADER_UP_BYTES * bits.round_trips
        assert 0 < r.downlink_bytes - bits.downlink_bits / 8 <= HEADER_DOWN_BYTES * bits.round_trips


class Lenient(StrictJudge):
    """Keeps every other mismatch."""

    def needs_hidden(self, threshold: float) -> bool:
        return True

    def judge(self, batch: Sequence[Candidates]) -> list[np.ndarray]:
        return [np.arange(len(one.draft_ids)) % 2 == 0 for one in batch]


@pytest.mark.parametrize("kind", ["fh", "sh"])
async def test_a_judge_keeps_mismatches_of_samples(kind: str) -> None:
    async with station(judge=Lenient()) as (_, address):
        record = await decode(address, kind, 6, threshold=0.5)
    assert sum(r.kept for r in record.rounds) > 0 and record.token_ids != own_sample(40)


async def test_protocols_that_draw_tokens_refuse_coupled_sampling() -> None:
    async with station() as (_, address), client(address) as connection:
        for kind in ("rejection", "split"):
            number = connection.new_session()
            asked = Open(session=number, protocol=kind, threshold=0.0, hidden_size=64, coupled=True)
            await connection.send(asked, {"ids": np.array(PROMPT, np.int32)})
            answer = (await connection.receive(number, 5)).message
            assert isinstance(answer, Fault) and f"{kind} draws its own tokens" in answer.reason


async def test_the_gap_of_a_divergence_includes_the_noise() -> None:
    own = own_sample(12)
    ids = [*PROMPT, *own[:7]]
    shape = Peaked(next_token(ids, VOCAB, 0), runner_up(ids, VOCAB, 0), VOCAB, uniform(ids, 0, "target"))
    chances, noise = shape.probs(), -np.log(exponentials(3, len(ids), VOCAB))
    wrong = next(t for t in (shape.best, shape.second) if t != own[7])
    sums = [math.log(chances[t]) + HOW.temperature * noise[t] for t in (own[7], wrong)]
    async with station() as (_, address), client(address) as connection:
        changed = [*own[:7], wrong, *own[8:]]
        found = await compare(connection, 0, PROMPT, changed, own, 0.0, HOW, 3)
        assert found is not None and found.position == 7 and not found.tie
        assert found.gap == pytest.approx(sums[0] - sums[1], abs=1e-4)
        tied = await compare(connection, 0, PROMPT, changed, own, found.gap + 1e-3, HOW, 3)
        assert tied is not None and tied.tie
        assert await compare(connection, 0, PROMPT, own, own, 0.0, HOW, 3) is None
