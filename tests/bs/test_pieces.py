"""Rounds whose prompt goes in pieces, and what a UE may say of its speed and times: over a real socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.errors import EngineError, LinkTimeout, ProtocolError
from testbed.protocols.messages import Close, Draft, Open, Opened, Verdict
from testbed.synthetic import next_token
from testbed.ue.client import Client
from tests.bs.test_server import PROMPT, decode, targets_own
from tests.support.stations import VOCAB, client, station


@pytest.mark.parametrize("speed_tps", [0.0, -1.0, float("inf"), float("nan")])
async def test_a_speed_that_cannot_be_is_a_fault(speed_tps: float) -> None:
    async with station() as (_, address), client(address) as connection:
        number = connection.new_session()
        open_ = Open(session=number, protocol="fh", threshold=0.0, hidden_size=64, speed_tps=speed_tps)
        await connection.send(open_, {"ids": np.array(PROMPT, np.int32)})
        assert "speed_tps must lie in 0.001..1e+09 tokens/s" in (await connection.receive(number, 5)).message.reason


@pytest.mark.parametrize("time_s", [-0.1, float("inf"), float("nan")])
@pytest.mark.parametrize("which", ["draft_s", "network_s"])
async def test_times_of_a_round_that_cannot_be_are_a_fault_and_end_nothing(which: str, time_s: float) -> None:
    async with station() as (_, address), client(address) as connection:
        number = connection.new_session()
        open_ = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=64, speed_tps=4.0)
        await connection.send(open_, {"ids": np.array(PROMPT, np.int32)})
        assert isinstance((await connection.receive(number, 5)).message, Opened)
        ids = {"ids": np.array([1], np.int32)}
        await connection.send(Draft(session=number, round=0, base_len=5, **{which: time_s}), ids)
        assert f"{which} must lie in 0..86400 s" in (await connection.receive(number, 5)).message.reason
        await connection.send(Draft(session=number, round=0, base_len=5), ids)
        assert isinstance((await connection.receive(number, 5)).message, Verdict)


class Stepping(SyntheticEngine):
    """Waits to be let go before each pass, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(vocab_size=VOCAB, chunk_tokens=128)
        self.asked: list[list[tuple[int, int]]] = []
        self.released: list[str] = []
        self.steps = threading.Semaphore(0)

    def compute(self, batch: list[VerifyRequest]) -> list[VerifyResult]:  # type: ignore[override]
        assert self.steps.acquire(timeout=10)
        self.asked.append([(len(r.prefix), len(r.draft)) for r in batch])
        return super().compute(batch)

    def release(self, session: str) -> None:
        super().release(session)
        self.released.append(session)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not come about")


async def in_pieces(connection: Client, number: int, length: int = 300) -> Draft:
    """Open a session with a long prompt and send its first window."""
    open_ = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=64)
    await connection.send(open_, {"ids": np.arange(length, dtype=np.int32)})
    draft = Draft(session=number, round=0, base_len=length)
    await connection.send(draft, {"ids": np.array([1, 2], np.int32)})
    assert isinstance((await connection.receive(number, 5)).message, Opened)
    return draft


async def test_a_round_in_pieces_is_verified_once_whatever_is_sent_again() -> None:
    engine = Stepping()
    async with station(engine) as (bs, address), client(address) as connection:
        number = connection.new_session()
        draft = await in_pieces(connection, number)
        for _ in range(3):
            await connection.send(draft, {"ids": np.array([1, 2], np.int32)})
            engine.steps.release()
        verdict = (await connection.receive(number, 5)).message
        await connection.send(draft, {"ids": np.array([1, 2], np.int32)})
        assert (await connection.receive(number, 5)).message == verdict and isinstance(verdict, Verdict)
    assert engine.asked == [[(128, 0)], [(256, 0)], [(300, 2)]]
    assert (bs.metrics()["passes"], bs.rounds, bs.metrics()["pieces"]) == (3, 1, 2)
    assert verdict.token == next_token([*range(300), 1, 2][: 300 + verdict.accepted], VOCAB, 0)


async def test_a_session_that_is_closed_between_pieces_is_gone() -> None:
    engine = Stepping()
    async with station(engine) as (_, address), client(address) as connection:
        number = connection.new_session()
        await in_pieces(connection, number)
        await connection.send(Close(session=number))
        assert len(await connection.rtt_s(1)) == 1
        engine.steps.release()
        await until(lambda: bool(engine.released))
        assert engine.asked == [[(128, 0)]]
        for _ in range(4):
            engine.steps.release()
        assert (await decode(address, "greedy", 4, PROMPT, tokens=6)).token_ids == targets_own(PROMPT, 6)


async def test_a_session_that_is_opened_anew_between_pieces_starts_over() -> None:
    engine = Stepping()
    async with station(engine) as (_, address), client(address) as connection:
        number = connection.new_session()
        await in_pieces(connection, number)
        await in_pieces(connection, number, 200)
        for _ in range(3):
            engine.steps.release()
        assert isinstance((await connection.receive(number, 5)).message, Verdict)
        assert len(await connection.rtt_s(1)) == 1
        with pytest.raises(LinkTimeout):
            await connection.receive(number, 0.05)
    assert engine.asked == [[(128, 0)], [(128, 0)], [(200, 2)]]
    assert len(engine.released) == 1


async def test_a_pass_that_fails_fails_the_round_that_a_piece_belongs_to() -> None:
    class Failing(SyntheticEngine):
        failures = 2

        def compute(self, batch: list[VerifyRequest]) -> list[VerifyResult]:  # type: ignore[override]
            if self.failures:
                self.failures -= 1
                raise EngineError("out of memory")
            return super().compute(batch)

    async with station(Failing(vocab_size=VOCAB, chunk_tokens=64)) as (bs, address):
        prompt = list(range(300))
        with pytest.raises(ProtocolError, match="out of memory"):
            await decode(address, "greedy", 4, prompt)
        assert (await decode(address, "greedy", 4, prompt)).token_ids == targets_own(prompt, 40)
    assert bs.metrics()["failed_passes"] == 2
