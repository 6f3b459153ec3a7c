"""Judged decoding in lockstep against the same rounds over a real base station."""

from __future__ import annotations

import pytest

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.judging.base import Judge, StrictJudge
from testbed.bs.judging.head import HeadJudge
from testbed.channel.csi import Csi
from testbed.experiments.head.judged import JudgedSetup, decode_judged
from testbed.experiments.lockstep.answers import AnswerTask
from testbed.experiments.lockstep.completions import Completer
from testbed.experiments.lockstep.decoding import Lockstep
from testbed.experiments.runs.memo import MemoEngine
from testbed.experiments.runs.memo_drafter import MemoDrafter
from testbed.protocols import protocol
from testbed.protocols.messages import Reading
from testbed.ue.drafters.after import StatesAfter
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.heads import random_head
from tests.support.stations import VOCAB, client, station
from tests.support.synthetic import text_of

PROMPTS = [[3, i, 4, 1, 5] for i in range(6)]
GOOD = Csi(500.0, 500.0, 5.0)


@pytest.mark.parametrize(("states", "threshold"), [("predicting", 0.4), ("after", 0.4), ("predicting", 0.0)])
async def test_outputs_and_rounds_are_those_of_a_base_station(states: Reading, threshold: float) -> None:
    judge: Judge = HeadJudge(random_head(states=states)) if threshold else StrictJudge()
    ends = tuple(range(10))

    def drafter() -> Drafter:
        plain = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
        return StatesAfter(plain) if states == "after" else plain

    wanted = []
    async with station(judge=judge) as (_, address), client(address) as connection:
        for prompt in PROMPTS:
            session = DecodingSession(
                connection, drafter(), protocol("fh"), FixedWindow(8), threshold, csi=lambda: GOOD
            )
            record = await session.decode(prompt, 60, ends)
            wanted.append((record.token_ids, len(record.rounds)))
    assert any(len(ids) < 60 for ids, _ in wanted) or threshold == 0.0
    plain = MemoDrafter(SyntheticDrafter(vocab_size=VOCAB, alpha=0.7))
    source: Drafter = StatesAfter(plain) if states == "after" else plain
    setup = JudgedSetup(source, AnswerTask(Completer(ends), 60, text_of, hash), 8, judge, GOOD, threshold)
    engine = MemoEngine(SyntheticEngine(vocab_size=VOCAB), hidden=True)
    for _ in range(2):  # the second time from memory
        found = dict(Lockstep(engine, 4).run(decode_judged(setup, i, p) for i, p in enumerate(PROMPTS)))
        assert [(found[i].token_ids, found[i].rounds) for i in range(len(PROMPTS))] == wanted
