"""A base station that comes back with another target, judge or head: its UEs notice, whatever they were doing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from testbed.bs.server import BaseStation
from testbed.errors import ProtocolError
from testbed.protocols import TARGET_ONLY, protocol
from testbed.protocols.messages import SHARED, Welcome, difference
from testbed.synthetic import next_token
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.gate import compare
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, client, station

PROMPT = [3, 1, 4, 1, 5]
REFUSED = "the BS refuses: it serves another target, judge or head than at the greeting; restart the UE to use it"


def own(length: int) -> list[int]:
    ids = list(PROMPT)
    for _ in range(length):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(PROMPT) :]


async def decode(ue: Client, method: str, length: int, progress: Any = None) -> list[int]:
    if method == TARGET_ONLY:
        return (await decode_remotely(ue, PROMPT, length, (), progress)).token_ids
    session = DecodingSession(ue, SyntheticDrafter(vocab_size=VOCAB, alpha=0.7), protocol(method), FixedWindow(4))
    return (await session.decode(PROMPT, length, (), progress)).token_ids


def restart(bs: BaseStation, **change: Any) -> None:
    """Lose all sessions, and serve something else."""
    bs._intake.offer = replace(bs._intake.offer, **change)
    for session in list(bs._intake.sessions):
        bs._intake.sessions.close(session.key)
        bs._closer.forget(session)


@pytest.mark.parametrize("method", ["greedy", "fh", TARGET_ONLY])
@pytest.mark.parametrize("change", [{"weights": "other"}, {"judge": "head 12"}, {"end_ids": (7,)}])
async def test_requests_end_in_one_line_and_go_on_once_the_old_one_is_back(method: str, change: dict[str, Any]) -> None:
    async with station() as (bs, address), client(address) as ue:
        before = bs._intake.offer
        assert await decode(ue, method, 12) == own(12)
        restart(bs, **change)
        with pytest.raises(ProtocolError) as caught:
            await decode(ue, method, 12)
        assert str(caught.value) == REFUSED
        bs._intake.offer = before
        assert await decode(ue, method, 12) == own(12)


@pytest.mark.parametrize("method", ["greedy", TARGET_ONLY])
async def test_a_request_does_not_go_on_with_another_target(method: str) -> None:
    async with station() as (bs, address), client(address, timeout_s=60.0) as ue:
        rounds: list[int] = []

        def progress(record: Any) -> None:
            rounds.append(record.round)
            if len(rounds) == 3:
                restart(bs, weights="other")

        with pytest.raises(ProtocolError) as caught:
            await decode(ue, method, 2000, progress)
        assert str(caught.value) == REFUSED


async def test_the_gate_does_not_compare_with_another_target() -> None:
    async with station() as (bs, address), client(address) as ue:
        restart(bs, weights="other")
        with pytest.raises(ProtocolError, match="another target"):
            await compare(ue, 0, PROMPT, [1, 2], [1, 3], 0.0)


async def test_a_restart_with_the_same_target_is_survived() -> None:
    async with station() as (bs, address), client(address) as ue:
        rounds: list[int] = []

        def progress(record: Any) -> None:
            rounds.append(record.round)
            if len(rounds) == 3:
                restart(bs)

        assert await decode(ue, "greedy", 40, progress) == own(40)


@pytest.mark.parametrize("name", SHARED)
def test_each_field_counts_and_the_name_of_the_model_does_not(name: str) -> None:
    values: dict[str, Any] = {"weights": "a", "judge": "b", "vocab_size": 3, "hidden_size": 4, "end_ids": (1, 2)}
    rest: dict[str, Any] = {"version": 1, "protocols": (), "max_window": 1, "max_positions": 1}
    welcome = Welcome(model="m", **values, **rest)
    renamed = Welcome(model="n", **values, **rest)
    assert renamed.digest == welcome.digest and difference(renamed.shared, welcome.shared, "x") == ""
    other = Welcome(model="m", **{**values, name: (5,) if name == "end_ids" else "5"}, **rest)
    assert other.digest != welcome.digest
    assert name in difference(other.shared, welcome.shared, "x") and len(welcome.digest) == 8
