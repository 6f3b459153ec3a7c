"""Extreme but finite numbers in messages, and errors in the computations of one session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from testbed.bs.judging.base import Candidates, StrictJudge
from testbed.bs.pending import Pending, Round
from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.base import Fcfs, Scheduler
from testbed.bs.scheduling.slo import Slo
from testbed.bs.scheduling.window_hints import Windows
from testbed.channel.csi import Csi
from testbed.optim.draft_window.controller import DEFAULT
from testbed.optim.pass_time import Coefficients
from testbed.protocols import protocol
from testbed.protocols.messages import Close, Draft, Fault, Hidden, Open, Opened, Verdict
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, client, station

TIMES = Coefficients(1e-5, 1e-9, 1e-8, 1e-3)
IDS = {"ids": np.array([1, 2, 3], np.int32)}
ONE = {"ids": np.array([1], np.int32)}


async def opened(ue: Client, ids: dict[str, Any] = IDS, **fields: Any) -> int:
    number = ue.new_session()
    await ue.send(Open(session=number, protocol="greedy", threshold=0.0, hidden_size=4, **fields), ids)
    assert isinstance((await ue.receive(number, 5)).message, Opened)
    return number


async def still_serves(address: str) -> None:
    async with client(address) as ue:
        session = DecodingSession(ue, SyntheticDrafter(vocab_size=VOCAB, alpha=0.8), protocol("greedy"), FixedWindow(4))
        assert len((await session.decode([1, 2, 3], 12, ())).token_ids) == 12


def options(scheduler: str) -> dict[str, Any]:
    chosen: Scheduler = Slo(coefficients=TIMES) if scheduler == "slo" else Fcfs()
    return {"scheduler": chosen, "windows": Windows(DEFAULT, lambda: TIMES, vocab_size=VOCAB)}


@pytest.mark.parametrize("scheduler", ["fcfs", "slo"])
@pytest.mark.parametrize("field", ["draft_s", "network_s"])
async def test_times_whose_sum_overflows_are_refused(scheduler: str, field: str) -> None:
    async with station(**options(scheduler)) as (_, address):
        async with client(address) as ue:
            number = await opened(ue, speed_tps=4.0)
            for _ in range(3):
                await ue.send(Draft(session=number, round=0, base_len=3, **{field: 1.7e308}), ONE)
                answer = (await ue.receive(number, 5)).message
                assert answer == Fault(session=number, reason=f"{field} must lie in 0..86400 s, not 1.7e+308")
        await still_serves(address)


@pytest.mark.parametrize("csi", [{"uplink_mbps": 5e-324}, {"downlink_mbps": 1e300}, {"rtt_ms": 1e308}])
async def test_a_channel_state_that_no_link_has_is_refused(csi: dict[str, float]) -> None:
    state = Csi(**{"uplink_mbps": 1.0, "downlink_mbps": 1.0, "rtt_ms": 1.0, **csi})
    async with station(**options("fcfs")) as (_, address):
        async with client(address) as ue:
            number = await opened(ue, window=8, max_tokens=50)
            await ue.send(Draft(session=number, round=0, base_len=3, csi=state), ONE)
            answer = (await ue.receive(number, 5)).message
            assert isinstance(answer, Fault) and answer.session == number
            assert f"{next(iter(csi))} must lie in" in answer.reason
        await still_serves(address)


async def test_a_subnormal_speed_is_refused() -> None:
    async with station(**options("slo")) as (_, address):
        async with client(address) as ue:
            number = ue.new_session()
            message = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=4, speed_tps=1e-310)
            await ue.send(message, IDS)
            assert "speed_tps must lie in" in (await ue.receive(number, 5)).message.reason
        await still_serves(address)


@pytest.mark.parametrize("scheduler", ["fcfs", "slo"])
async def test_the_largest_and_smallest_numbers_in_range_are_served(scheduler: str) -> None:
    slowest = Csi(uplink_mbps=1e-6, downlink_mbps=1e-6, rtt_ms=86_400e3, per_up=1 - 2**-53, snr_db=-1000.0)
    fastest = Csi(uplink_mbps=1e12, downlink_mbps=1e12, rtt_ms=0.0, snr_db=1000.0)
    cases = [(1e-3, 86_400.0, 86_400.0, slowest), (1e9, 0.0, 5e-324, fastest), (1.0, 5e-324, 0.0, None)]
    async with station(**options(scheduler)) as (bs, address):
        async with client(address) as ue:
            for speed_tps, draft_s, network_s, csi in cases:
                number = await opened(ue, speed_tps=speed_tps, window=8, max_tokens=50)
                length = 3
                for round_ in range(6):
                    more = {"csi": csi, "draft_s": draft_s, "network_s": network_s}
                    await ue.send(Draft(session=number, round=round_, base_len=length, **more), ONE)
                    answer = (await ue.receive(number, 5)).message
                    assert isinstance(answer, Verdict)
                    if answer.window == 0:
                        break
                    length += answer.accepted + 1
        await still_serves(address)
        found = bs.metrics()
        assert found["failed_sessions"] == found["failed_updates"] == 0


@pytest.mark.parametrize("lie", [{"draft_s": 30.0}, {"draft_s": 86_400.0}, {"draft_s": 30.0, "network_s": 86_400.0}])
@pytest.mark.parametrize("rounds", [1, 40])
async def test_times_that_one_ue_reports_refuse_no_other_session(lie: dict[str, float], rounds: int) -> None:
    admission = Admission(coefficients=TIMES, max_requests=16)
    async with station(**options("slo"), admission=admission) as (_, address):
        async with client(address) as liar:
            number, length = await opened(liar), 3
            for round_ in range(rounds):
                await liar.send(Draft(session=number, round=round_, base_len=length, **lie), ONE)
                answer = (await liar.receive(number, 5)).message
                assert isinstance(answer, Verdict)
                length += answer.accepted + 1
            await liar.send(Close(session=number))
        async with client(address) as ue:
            await opened(ue, speed_tps=2.0)


class FailsFor(Fcfs):
    """Cannot plan prompts of one length."""

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        if any(len(item.request.prefix) == 7 for item in pending):
            raise OverflowError("cannot convert float infinity to integer")
        return super().plan(pending, now_s)


class WrongFor(StrictJudge):
    """Fails on one drafted token."""

    def judge(self, batch: Sequence[Candidates]) -> list[Any]:
        if any(9 in window.draft_ids for window in batch):
            raise ValueError("cannot convert float NaN to integer")
        return super().judge(batch)


async def test_a_session_that_cannot_be_planned_fails_alone() -> None:
    async with station(scheduler=FailsFor()) as (bs, address), client(address) as ue:
        number = await opened(ue, {"ids": np.arange(7, dtype=np.int32)})
        beside = asyncio.create_task(still_serves(address))
        await ue.send(Draft(session=number, round=0, base_len=7), ONE)
        answer = (await ue.receive(number, 5)).message
        assert answer == Fault(session=number, reason="internal error: cannot convert float infinity to integer")
        await beside
        assert bs.metrics()["failed_sessions"] == 1


async def test_a_session_whose_result_cannot_be_read_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Round.candidates

    def candidates(self: Round) -> list[int]:
        if 9 in self.window.ids:
            raise ValueError("operands could not be broadcast together")
        return read(self)

    monkeypatch.setattr(Round, "candidates", candidates)
    async with station() as (bs, address), client(address) as ue:
        number = await opened(ue)
        beside = asyncio.create_task(still_serves(address))
        await ue.send(Draft(session=number, round=0, base_len=3), {"ids": np.array([9], np.int32)})
        answer = (await ue.receive(number, 5)).message
        assert answer == Fault(session=number, reason="internal error: operands could not be broadcast together")
        await beside
        assert bs.metrics()["failed_sessions"] == 1


@pytest.mark.parametrize("kind", ["fh", "sh"])
async def test_a_session_that_cannot_be_judged_fails_alone(kind: str) -> None:
    """Rounds of FH are judged with their pass, those of SH when their hidden states arrive."""
    states = {"hidden": np.zeros((1, 4), np.float16)} if kind == "fh" else {}
    async with station(judge=WrongFor()) as (bs, address), client(address) as ue:
        number = ue.new_session()
        await ue.send(Open(session=number, protocol=kind, threshold=0.5, hidden_size=4), IDS)
        assert isinstance((await ue.receive(number, 5)).message, Opened)
        beside = asyncio.create_task(still_serves(address))
        await ue.send(Draft(session=number, round=0, base_len=3), {"ids": np.array([9], np.int32), **states})
        while not isinstance(answer := (await ue.receive(number, 5)).message, Fault):
            await ue.send(Hidden(session=number, round=0), {"hidden": np.zeros((1, 4), np.float16)})
        await beside
        assert "internal error: cannot convert float NaN" in answer.reason
        assert bs.metrics()["failed_sessions"] == 1
