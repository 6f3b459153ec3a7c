"""A UE that asks for a speed: what it tells the BS of its rounds, and what it does when it is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from testbed.bs.scheduling.admission import Admission
from testbed.bs.sessions import SessionTable
from testbed.errors import AdmissionError, BadInput
from testbed.optim.pass_time import Coefficients
from testbed.protocols import TARGET_ONLY, protocol
from testbed.synthetic import next_token
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.run import Clients, JobRunner, OwnOutput, Setting
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, client, station

PROMPT = [3, 1, 4, 1, 5]
STRICT = Admission(coefficients=Coefficients(0.0, 0.0, 0.0, 0.1), max_requests=1, classes=(8.0, 2.0))
"""Ten rounds a second: of three tokens each, before anything is measured."""


def own(length: int) -> list[int]:
    ids = list(PROMPT)
    for _ in range(length):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(PROMPT) :]


async def decode(connection: Client, method: str, speed_tps: float, slower: bool = False) -> RequestRecord:
    if method == TARGET_ONLY:
        return await decode_remotely(connection, PROMPT, 30, (), speed_tps=speed_tps, accept_slower=slower)
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
    how = {"speed_tps": speed_tps, "accept_slower": slower}
    session = DecodingSession(connection, drafter, protocol(method), FixedWindow(4), **how)  # type: ignore[arg-type]
    return await session.decode(PROMPT, 30, ())


@pytest.mark.parametrize("method", ["greedy", "sh", TARGET_ONLY])
async def test_what_can_be_promised_is_served(method: str) -> None:
    async with station(admission=STRICT) as (bs, address), client(address) as connection:
        record = await decode(connection, method, 2.0)
    assert record.token_ids == own(30)
    assert bs.metrics()["promised_rounds"] == {"2": len(record.rounds)}


@pytest.mark.parametrize("method", ["greedy", TARGET_ONLY])
@pytest.mark.parametrize(
    ("limit", "slower", "answer"),
    [(0.8, False, "8 can"), (0.05, False, "no slower class can either"), (0.05, True, "no slower class can either")],
)
async def test_what_cannot_is_refused_in_one_line(method: str, limit: float, slower: bool, answer: str) -> None:
    tight = replace(STRICT, limit=limit)
    async with station(admission=tight) as (bs, address), client(address) as connection:
        with pytest.raises(AdmissionError, match=f"50 tokens/s cannot be guaranteed beside 0 other sessions; {answer}"):
            await decode(connection, method, 50.0, slower)
        assert bs.rounds == 0 and not len(bs._intake.sessions)


@pytest.mark.parametrize("method", ["greedy", "fh", "sh", TARGET_ONLY])
async def test_who_takes_less_is_served_at_that(method: str) -> None:
    async with station(admission=STRICT) as (bs, address), client(address) as connection:
        record = await decode(connection, method, 50.0, slower=True)
    assert record.token_ids == own(30)
    metrics = bs.metrics()
    assert metrics["refused_sessions"] == {"50": 1}
    assert metrics["promised_rounds"] == {"8": len(record.rounds)}


async def test_waiting_for_room_leaves_no_round_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full BS answers `Busy` to the opening and `Resync` to the draft that followed it: one opening mends both."""
    monkeypatch.setattr("testbed.bs.intake.RETRY_S", 0.05)
    opened = 0

    class Counting(SessionTable):
        def open(self, *args: object, **how: object) -> object:  # type: ignore[override]
            nonlocal opened
            opened += 1
            return super().open(*args, **how)  # type: ignore[arg-type]

    async with station(sessions=Counting(per_peer=1)) as (_, address), client(address) as connection:
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
        sessions = [DecodingSession(connection, drafter, protocol("fh"), FixedWindow(3)) for _ in range(4)]
        records = await asyncio.gather(*(session.decode(PROMPT, 30, ()) for session in sessions))
    assert [record.token_ids for record in records] == [own(30)] * 4
    assert opened == 4


async def test_a_run_asks_for_its_speed_in_every_request() -> None:
    async with station(admission=STRICT) as (bs, address), client(address) as connection:
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
        both = Clients(connection, connection)
        runner = JobRunner(Setting(both, drafter, FixedWindow(4), speed_tps=50.0, accept_slower=True))
        for method in ("greedy", TARGET_ONLY, "colocated"):
            record = await runner.decode(method, PROMPT, 12, ())
            assert record.token_ids == own(12)
        refused = JobRunner(Setting(both, drafter, FixedWindow(4), speed_tps=50.0))
        with pytest.raises(AdmissionError, match="50 tokens/s"):
            await refused.decode("greedy", PROMPT, 12, ())
        assert (await refused.own(PROMPT, OwnOutput(0, 12), ())).token_ids == own(12)  # nothing is promised to the gate
    assert bs.metrics()["refused_sessions"] == {"50": 4}


@pytest.mark.parametrize("speed_tps", [0.0, -3.0, float("nan"), float("inf")])
def test_speeds_that_cannot_be(speed_tps: float) -> None:
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
    with pytest.raises(BadInput, match="a speed is a positive number"):
        Setting(None, drafter, FixedWindow(4), speed_tps=speed_tps)  # type: ignore[arg-type]
