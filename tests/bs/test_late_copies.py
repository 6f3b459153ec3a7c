"""Messages that come twice, late or out of order, on real sockets: every method's output stays."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from testbed.protocols import PROTOCOLS, TARGET_ONLY, protocol
from testbed.protocols.methods import Ahead, run_method
from testbed.protocols.sampling import Sampling
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.exchange import SILENCE_S
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.stream_choice import StreamChoice
from tests.support.postman import AS_IT_IS, Letter, Order, postman
from tests.support.stations import VOCAB, client, station

METHODS = (*PROTOCOLS, TARGET_ONLY)
AHEAD = tuple(kind for kind, one in PROTOCOLS.items() if not one.sampled)


async def decode(ue: Client, method: str, lookahead: Ahead = 0) -> list[int]:
    if method == TARGET_ONLY:
        return (await decode_remotely(ue, [3, 1, 4], 24, ())).token_ids
    sampling = run_method(method).sampling(Sampling(0.8))
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    session = DecodingSession(
        ue, drafter, protocol(method), FixedWindow(4), sampling=sampling, seed=5, lookahead=lookahead,
        streams=StreamChoice(4, alone=lookahead is None),
    )  # fmt: skip
    return (await session.decode([3, 1, 4], 24, ())).token_ids


@pytest.mark.parametrize("behind", [0, 1, 3])
async def test_every_message_twice_changes_nothing(behind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.ue.exchange.RESEND_S", 0.2)
    async with station() as (_, address), postman(address) as between:
        async with client(address) as ue:
            quiet = [await decode(ue, method) for method in METHODS]
        between.decide = lambda letter: Order(copies=2, behind=behind)
        async with client(between.address, timeout_s=30.0) as ue:
            assert await asyncio.gather(*(decode(ue, method) for method in METHODS)) == quiet
            found = await asyncio.gather(*(decode(ue, method, 1) for method in AHEAD))
            assert found == [quiet[METHODS.index(method)] for method in AHEAD]
    happened = {fault.kind for fault in between.faults if fault.happened}
    assert {"Open", "Draft", "Hidden", "Opened", "NeedHidden", "Verdict"} <= happened


async def test_windows_and_verdicts_that_later_ones_overtake_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.ue.exchange.RESEND_S", 0.1)
    monkeypatch.setattr("tests.support.postman.FLUSH_S", 1.0)
    dice = random.Random(2)

    def decide(letter: Letter) -> Order:
        late = letter.kind in ("Draft", "Verdict", "Hidden", "NeedHidden") and dice.random() < 0.3
        return Order(behind=dice.randint(1, 3)) if late else AS_IT_IS

    async with station() as (_, address), postman(address) as between:
        async with client(address) as ue:
            quiet = [await decode(ue, method) for method in PROTOCOLS]
        between.decide = decide
        async with client(between.address, timeout_s=30.0) as ue:
            assert await asyncio.gather(*(decode(ue, method) for method in PROTOCOLS)) == quiet
    assert sum(fault.happened for fault in between.faults) > 10


@pytest.mark.parametrize("lookahead", [1, "stream", None])
@pytest.mark.parametrize("seed", range(4))
async def test_with_lookahead_any_message_may_be_lost_doubled_or_overtaken(
    seed: int, lookahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.ue.exchange.RESEND_S", 0.05)
    monkeypatch.setattr("testbed.ue.exchange.SILENCE_S", 0.1)
    monkeypatch.setattr("tests.support.postman.FLUSH_S", 0.3)
    dice = random.Random(f"ahead/{seed}")

    def decide(letter: Letter) -> Order:
        if letter.kind not in ("Draft", "Verdict", "Hidden", "NeedHidden", "Open", "Resync") or dice.random() < 0.6:
            return AS_IT_IS
        return dice.choice([Order(copies=0), Order(copies=2), Order(copies=2, behind=1), Order(behind=2)])

    async with station() as (bs, address), postman(address) as between:
        async with client(address) as ue:
            quiet = [await decode(ue, method) for method in AHEAD]
        between.decide = decide
        async with client(between.address, timeout_s=30.0) as ue:
            for _ in range(2):
                assert await asyncio.gather(*(decode(ue, method, lookahead) for method in AHEAD)) == quiet
        assert bs._intake.sessions.held.windows <= len(bs._intake.sessions)
    assert sum(fault.happened for fault in between.faults) > 20


async def test_a_stream_whose_request_is_lost_is_asked_for_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the longer silence that a BS with a long prompt may need."""
    monkeypatch.setattr("testbed.ue.target_only.RESEND_S", 0.2)
    lost = iter([Order(copies=0)] * 2)

    async with station() as (_, address), postman(address) as between, client(between.address, timeout_s=60.0) as ue:
        between.decide = lambda letter: next(lost, AS_IT_IS) if letter.kind == "Open" else AS_IT_IS
        start_s = time.monotonic()
        assert len(await decode(ue, TARGET_ONLY)) == 24
        assert 0.6 < time.monotonic() - start_s < SILENCE_S
    assert [fault.kind for fault in between.faults] == ["Open"] * 2


async def test_the_postman_does_what_it_is_told_and_keeps_book(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost, late, twice: seen by what arrives, on a link that carries nothing else."""
    monkeypatch.setattr("testbed.ue.client.RESEND_S", 0.5)
    orders = iter([Order(copies=0), Order(delay_s=0.3), Order(copies=2)])

    async with station() as (_, address), postman(address) as between, client(between.address) as ue:
        between.decide = lambda letter: next(orders) if letter.kind == "Ping" else AS_IT_IS
        carried, start_s = between.carried[between.ues[0], False], time.monotonic()
        assert len(await ue.rtt_s(2)) == 2  # the first again after 0.5 s, and then 0.3 s late
        assert time.monotonic() - start_s > 0.75
        await asyncio.sleep(0.3)
        assert between.carried[between.ues[0], False] - carried == 3
    assert [fault.kind for fault in between.faults] == ["Ping"] * 3
