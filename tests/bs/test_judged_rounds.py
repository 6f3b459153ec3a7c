"""Rounds judged by a real head over a real socket: FH and SH alike, θ at its ends, drafters that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.judging.base import Judge
from testbed.bs.judging.head import BudgetJudge, HeadJudge, TableJudge
from testbed.channel.csi import Csi
from testbed.errors import ProtocolError
from testbed.protocols import protocol
from testbed.synthetic import next_token
from testbed.ue.drafters.after import StatesAfter
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.heads import random_head
from tests.support.stations import VOCAB, client, station

PROMPT = [3, 1, 4, 1, 5]
GOOD, POOR = Csi(500.0, 500.0, 5.0), Csi(5.0, 5.0, 200.0)


class Watched(SyntheticEngine):
    """Remembers whether hidden states were asked for."""

    def __init__(self) -> None:
        super().__init__(vocab_size=VOCAB)
        self.hidden: list[bool] = []

    def compute(self, batch: list[VerifyRequest]) -> list[VerifyResult]:  # type: ignore[override]
        self.hidden += [request.hidden for request in batch]
        return super().compute(batch)


async def decode(
    judge: Judge, kind: str, threshold: float, csi: Csi | None = GOOD, engine: SyntheticEngine | None = None
) -> RequestRecord:
    async with station(engine, judge=judge) as (_, address), client(address) as connection:
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
        session = DecodingSession(connection, drafter, protocol(kind), FixedWindow(8), threshold, csi=lambda: csi)
        return await session.decode(PROMPT, 80, ())


def targets_own() -> list[int]:
    ids = list(PROMPT)
    for _ in range(80):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 1.0])
async def test_fh_and_sh_give_the_same_output(threshold: float) -> None:
    judge = HeadJudge(random_head())
    fh, sh = [await decode(judge, kind, threshold) for kind in ("fh", "sh")]
    assert fh.token_ids == sh.token_ids
    assert [r.accepted for r in fh.rounds] == [r.accepted for r in sh.rounds]
    assert any(r.candidates for r in sh.rounds)
    assert all(r.queried == r.candidates for r in sh.rounds)


@pytest.mark.parametrize("kind", ["fh", "sh"])
async def test_the_ends_are_lossless_and_all_accepting_and_ask_for_no_hidden_states(kind: str) -> None:
    engine = Watched()
    judge = HeadJudge(random_head())
    strict = await decode(judge, kind, 0.0, engine=engine)
    open_ = await decode(judge, kind, 1.0, engine=engine)
    assert strict.token_ids == targets_own()
    assert all(r.accepted == r.drafted for r in open_.rounds)
    assert not any(engine.hidden)
    between = await decode(judge, kind, 0.5, engine=engine)
    assert all(engine.hidden[-len(between.rounds) :])
    assert len(open_.rounds) < len(between.rounds) < len(strict.rounds)


async def test_what_is_kept_is_what_the_head_says() -> None:
    """Every round again by hand, from the pair's definitions and the head alone."""
    head, threshold = random_head(), 0.5
    record = await decode(HeadJudge(head), "sh", threshold)
    engine, drafter = SyntheticEngine(vocab_size=VOCAB), SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    ids, made = list(PROMPT), PROMPT + record.token_ids
    for r in record.rounds:
        draft, kept = list(ids), 0
        for position in range(r.drafted):
            token = drafter.predict(draft, False)
            if token.id != next_token(draft, VOCAB, 0):
                bare = VerifyRequest("s", np.array(draft, np.int32), np.zeros(0, np.int32), hidden=True)
                state = engine.verify([bare])[0].hidden
                assert state is not None
                (p,) = head.reject_probability(token.hidden[None], state, GOOD.features[None])
                assert (p < threshold) == (position < r.accepted)
                if p >= threshold:
                    break
                kept += 1
            draft.append(token.id)
        assert r.kept == kept
        ids = made[: len(ids) + r.committed]
    assert sum(r.candidates for r in record.rounds) > 10


async def test_a_head_of_the_states_after_a_candidate_gets_those() -> None:
    """Every round again by hand: both models have read the drafted token; the UE uploads one state further on."""
    head, threshold = random_head(states="after"), 0.5
    records = []
    for kind in ("fh", "sh"):
        async with station(judge=HeadJudge(head)) as (_, address), client(address) as connection:
            drafter = StatesAfter(SyntheticDrafter(vocab_size=VOCAB, alpha=0.7))
            session = DecodingSession(connection, drafter, protocol(kind), FixedWindow(8), threshold, csi=lambda: GOOD)
            records.append(await session.decode(PROMPT, 80, ()))
    assert records[0].token_ids == records[1].token_ids != targets_own()
    record, engine, drafter = (
        records[0],
        SyntheticEngine(vocab_size=VOCAB),
        SyntheticDrafter(vocab_size=VOCAB, alpha=0.7),
    )
    ids, made = list(PROMPT), PROMPT + record.token_ids
    for r in record.rounds:
        draft = list(ids)
        for position in range(r.drafted):
            wanted = next_token(draft, VOCAB, 0)
            draft.append(drafter.predict(draft, False).id)
            if draft[-1] != wanted:
                bare = VerifyRequest("s", np.array(draft, np.int32), np.zeros(0, np.int32), hidden=True)
                state, read = engine.verify([bare])[0].hidden, drafter.predict(draft, False).hidden
                assert state is not None
                (p,) = head.reject_probability(read[None], state, GOOD.features[None])
                assert (p < threshold) == (position < r.accepted)
                if p >= threshold:
                    break
        ids = made[: len(ids) + r.committed]


async def test_a_ue_that_uploads_other_states_than_the_head_reads_is_refused() -> None:
    with pytest.raises(ProtocolError, match="after reading a token"):
        await decode(HeadJudge(random_head(states="after")), "fh", 0.5)


async def test_the_poor_channel_is_judged_by_its_own_threshold() -> None:
    judge = TableJudge(random_head(features=(), thresholds=((0.0, 0.9), (1.0, 0.1))))
    poor, good, unknown = [await decode(judge, "fh", 1.0, csi) for csi in (POOR, GOOD, None)]
    assert len(poor.rounds) < len(good.rounds) <= len(unknown.rounds)


async def test_a_budget_is_spent_once_per_response() -> None:
    judge = BudgetJudge(random_head(), 0.5)
    first = await decode(judge, "fh", 1.0)
    assert first.token_ids != targets_own()
    assert len(first.rounds) > len((await decode(HeadJudge(random_head()), "fh", 1.0)).rounds)


async def test_a_drafter_of_another_head_is_refused_only_where_it_matters() -> None:
    judge = HeadJudge(random_head(drafter_fingerprint="0123456789abcdef"))
    assert (await decode(judge, "fh", 0.0)).token_ids == targets_own()
    assert (await decode(judge, "greedy", 0.5)).token_ids == targets_own()
    for kind in ("fh", "sh"):
        with pytest.raises(ProtocolError, match="0123456789abcdef"):
            await decode(judge, kind, 0.5)
