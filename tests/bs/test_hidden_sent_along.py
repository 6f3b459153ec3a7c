"""Hidden states that come with the windows of an `sh` session: judged as under FH, and not requested."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from testbed.assets.fingerprints import SYNTHETIC
from testbed.bs.judging.head import HeadJudge
from testbed.bs.sessions import SessionTable
from testbed.channel.csi import Csi
from testbed.errors import LinkTimeout
from testbed.protocols import protocol
from testbed.protocols.base import Drafted, RoundProtocol
from testbed.protocols.codec import AnyArray
from testbed.protocols.messages import Busy, Draft, Fault, Hidden, Message, NeedHidden, Open, Opened, Verdict
from testbed.protocols.sh import SelectiveHidden
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.heads import random_head
from tests.support.postman import AS_IT_IS, Letter, Order, postman
from tests.support.stations import VOCAB, client, station

PROMPT, TOKENS, HIDDEN = [3, 1, 4, 1, 5], 80, 64
CSI = Csi(500.0, 500.0, 5.0)


class Along(SelectiveHidden):
    """Sends hidden states along with a share of the windows."""

    def __init__(self, share: float) -> None:
        self._dice, self._share = random.Random(1), share

    def uplink(self, drafted: Drafted) -> dict[str, AnyArray]:
        return protocol("fh" if self._dice.random() < self._share else "sh").uplink(drafted)


async def decode(
    ue: Client, kind: RoundProtocol, threshold: float = 0.5, bits: int = 16, lookahead: int = 0
) -> RequestRecord:
    session = DecodingSession(
        ue, SyntheticDrafter(vocab_size=VOCAB, alpha=0.7), kind, FixedWindow(8), threshold, csi=lambda: CSI,
        hidden_bits=bits, lookahead=lookahead,
    )  # fmt: skip
    return await session.decode(PROMPT, TOKENS, ())


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(("threshold", "bits"), [(0.0, 16), (0.3, 16), (0.6, 16), (0.5, 8), (1.0, 16)])
async def test_verdicts_are_those_of_fh_and_nothing_that_came_is_requested(
    threshold: float, bits: int, lookahead: int
) -> None:
    judge = HeadJudge(random_head(hidden_bits=bits))
    async with station(judge=judge) as (_, address), client(address) as ue:
        fh = await decode(ue, protocol("fh"), threshold, bits)
        along, mixed = [await decode(ue, Along(share), threshold, bits, lookahead) for share in (1.0, 0.5)]
    for one in (along, mixed):
        assert one.token_ids == fh.token_ids
        if not lookahead:
            assert [(r.accepted, r.kept, r.candidates) for r in one.rounds] == [
                (r.accepted, r.kept, r.candidates) for r in fh.rounds
            ]
    assert any(r.candidates for r in along.rounds) and not any(r.queried for r in along.rounds)
    asked = [r.queried for r in mixed.rounds if r.candidates]
    assert 0 < sum(map(bool, asked)) < len(asked)
    assert all(r.queried in (0, r.candidates) for r in mixed.rounds)


@pytest.mark.parametrize("seed", range(3))
async def test_windows_may_be_lost_doubled_or_overtaken(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.ue.exchange.RESEND_S", 0.05)
    monkeypatch.setattr("tests.support.postman.FLUSH_S", 0.3)
    dice = random.Random(f"along/{seed}")

    def decide(letter: Letter) -> Order:
        if letter.kind not in ("Draft", "Verdict", "Hidden", "NeedHidden", "Resync") or dice.random() < 0.7:
            return AS_IT_IS
        return dice.choice([Order(copies=0), Order(copies=2), Order(copies=2, behind=1), Order(behind=2)])

    async with station(judge=HeadJudge(random_head())) as (_, address), postman(address) as between:
        async with client(address) as ue:
            quiet = await decode(ue, protocol("fh"))
        between.decide = decide
        async with client(between.address, timeout_s=30.0) as ue:
            for lookahead in (0, 1):
                assert (await decode(ue, Along(0.5), lookahead=lookahead)).token_ids == quiet.token_ids
    assert sum(fault.happened for fault in between.faults) > 10


# ---------------------------------------------------------------- by hand


async def opened(ue: Client, kind: str = "sh") -> int:
    number = ue.new_session()
    opening = Open(session=number, protocol=kind, threshold=0.5, hidden_size=HIDDEN, drafter=SYNTHETIC)
    await ue.send(opening, {"ids": np.array(PROMPT, np.int32)})
    assert isinstance((await ue.receive(number, 5.0)).message, Opened)
    return number


async def answer(
    ue: Client, number: int, hidden: AnyArray | None, round_: int = 0, guess: int | None = None, count: int = 2
) -> Message | None:
    """What a window of ids 1, 1, … is answered with; None: nothing."""
    arrays = {"ids": np.ones(count, np.int32)} | ({} if hidden is None else {"hidden": hidden})
    base = len(PROMPT) + (0 if guess is None else count + 1)
    await ue.send(Draft(session=number, round=round_, base_len=base, guess=guess), arrays)
    try:
        return (await ue.receive(number, 0.5)).message  # type: ignore[no-any-return]
    except LinkTimeout:
        return None


STATES = np.ones((2, HIDDEN), np.float16)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda states: states[:1],
        lambda states: states[:, :2],
        lambda states: np.ones((2, 1000), np.float16),
        lambda states: np.ones((600, HIDDEN), np.float16),
        lambda states: states.ravel(),
        lambda states: states.astype(np.float32),
        lambda states: states * np.float16(np.nan),
    ],
)
async def test_states_of_a_wrong_shape_or_size_are_refused_as_under_fh(spoil: Callable[[AnyArray], AnyArray]) -> None:
    reasons = []
    async with station(judge=HeadJudge(random_head())) as (_, address), client(address) as ue:
        for kind in ("fh", "sh"):
            number = await opened(ue, kind)
            fault = await answer(ue, number, spoil(STATES))
            assert isinstance(fault, Fault)
            reasons.append(fault.reason)
            assert isinstance(await answer(ue, number, STATES), Verdict)  # the session goes on
    assert reasons[0] == reasons[1]


async def test_a_window_again_gets_the_same_verdict_and_one_with_other_ids_is_refused() -> None:
    async with station(judge=HeadJudge(random_head())) as (bs, address), client(address) as ue:
        number = await opened(ue)
        verdict = await answer(ue, number, STATES)
        assert isinstance(verdict, Verdict) and verdict.candidates and not verdict.queried
        assert await answer(ue, number, STATES) == verdict
        assert await answer(ue, number, None) == verdict  # its states are not looked at again
        assert isinstance(await answer(ue, number, STATES[:1], count=1), Fault)
        assert bs.rounds == 1


async def test_a_window_that_was_asked_about_waits_for_hidden_even_if_it_comes_again_with_states() -> None:
    async with station(judge=HeadJudge(random_head())) as (bs, address), client(address) as ue:
        number = await opened(ue)
        assert isinstance(await answer(ue, number, None), NeedHidden)
        assert isinstance(await answer(ue, number, STATES), NeedHidden)
        await ue.send(Hidden(session=number, round=0), {"hidden": STATES})
        assert isinstance((await ue.receive(number, 5.0)).message, Verdict)
        assert bs.rounds == 1


async def test_states_that_wait_count_towards_the_bytes_that_may_wait() -> None:
    table = SessionTable(windows_bytes=4 * STATES.nbytes)
    async with station(judge=HeadJudge(random_head()), sessions=table) as (bs, address), client(address) as ue:
        numbers = [await opened(ue) for _ in range(4)]
        answers = [await answer(ue, number, STATES, round_=1, guess=7) for number in numbers]
        assert answers[0] is None and isinstance(answers[-1], Busy)
        held = [answer_ for answer_ in answers if answer_ is None]
        ids, target = 2 * 4, 3 * 4 * HIDDEN
        assert bs.load == (len(held), len(held) * (ids + STATES.nbytes + target))
