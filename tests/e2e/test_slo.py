"""A base station process that keeps promises: started, asked, counted, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from testbed.config import ServeConfig
from testbed.errors import AdmissionError
from testbed.experiments.runs.processes import base_station
from testbed.protocols import protocol
from testbed.protocols.messages import Busy, Draft, Open, Opened, Resync, Verdict
from testbed.synthetic import next_token
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, client


@pytest.mark.parametrize("coefficients", ["probe", "a100-qwen3-32b"])
async def test_promises_between_processes(tmp_path: Path, coefficients: str) -> None:
    path = tmp_path / "bs.jsonl"
    config = ServeConfig(
        engine="synthetic", bind="tcp://127.0.0.1:*", scheduler="slo", metrics=str(path), metrics_interval_s=0.1,
        coefficients=coefficients,
    )  # fmt: skip
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
    with base_station(config) as ready:
        async with client(ready["bind"]) as ue:
            session = DecodingSession(ue, drafter, protocol("sh"), FixedWindow(5), speed_tps=2.0)
            record = await session.decode([1, 2, 3], 40, ())
            with pytest.raises(AdmissionError, match="cannot be guaranteed"):
                await DecodingSession(ue, drafter, protocol("sh"), FixedWindow(5), speed_tps=1e9).decode(
                    [1, 2, 3], 40, ()
                )
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows and all(before["passes"] <= after["passes"] for before, after in itertools.pairwise(rows))
    last = rows[-1]
    assert last["promised_rounds"] == {"2": len(record.rounds)} and last["missed_deadlines"] == {"2": 0}
    assert last["refused_sessions"] == {"1e+09": 1}
    assert last["estimate_mape"] is not None and set(last["coefficients"]) == {"a", "b_compute", "b_read", "c"}


async def lie(address: str, claims: dict[str, float], prompt: int, window: int) -> None:
    """Rounds whose times are made up and whose drafts are rejected, for ever; a guarantee is asked for, too."""
    async with client(address) as ue:
        for speed_tps in itertools.cycle((2.0, None)):
            number, length = ue.new_session(), prompt
            message = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=4, speed_tps=speed_tps)
            await ue.send(message, {"ids": np.ones(prompt, np.int32)})
            if not isinstance((await ue.receive(number, 20)).message, Opened):
                continue
            for round_ in range(100):
                ids = np.full(window, round_ % VOCAB, np.int32)
                await ue.send(Draft(session=number, round=round_, base_len=length, **claims), {"ids": ids})
                answer = (await ue.receive(number, 20)).message
                assert isinstance(answer, Verdict)
                length += answer.accepted + 1


@pytest.mark.parametrize(
    ("claims", "prompt", "window"),
    [
        ({"draft_s": 86_400.0, "network_s": 86_400.0}, 3, 8),
        ({"draft_s": 30.0}, 3, 1),
        ({}, 1500, 8),
    ],
)
@pytest.mark.parametrize("head_start_s", [0.0, 2.0])
async def test_a_lying_ue_changes_nothing_for_an_honest_one(
    claims: dict[str, float], prompt: int, window: int, head_start_s: float
) -> None:
    """An honest UE gets the speed and the tokens that it gets alone, before and after it has rounds of its own."""
    config = ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*", scheduler="slo", coefficients="a100-qwen3-32b")
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)

    async def decode(address: str, speed_tps: float | None) -> list[int]:
        async with client(address) as ue:
            session = DecodingSession(ue, drafter, protocol("greedy"), FixedWindow(5), speed_tps=speed_tps)
            return (await session.decode([1, 2, 3], 60, ())).token_ids

    with base_station(config) as ready:
        lying = asyncio.create_task(lie(ready["bind"], claims, prompt, window))
        await asyncio.sleep(head_start_s)
        found = [await decode(ready["bind"], 8.0) for _ in range(3)]
        assert not lying.done()
        lying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await lying
    ids = [1, 2, 3]
    for token in found[0]:
        assert token == next_token(ids, VOCAB, 0)
        ids.append(token)
    assert found == [found[0]] * 3


@pytest.mark.parametrize("busy", [False, True])
async def test_a_ue_with_all_guarantees_yields_its_share_to_another(busy: bool) -> None:
    config = ServeConfig(
        engine="synthetic", bind="tcp://127.0.0.1:*", scheduler="slo", coefficients="a100-qwen3-32b",
        max_sessions_per_ue=500, pace="a100-qwen3-32b",
    )  # fmt: skip

    async def asked(ue: Client) -> tuple[int, object]:
        number = ue.new_session()
        message = Open(session=number, protocol="greedy", threshold=0.0, hidden_size=4, speed_tps=8.0)
        await ue.send(message, {"ids": np.ones(3, np.int32)})
        return number, (await ue.receive(number, 20)).message

    with base_station(config) as ready:
        async with client(ready["bind"]) as hog, client(ready["bind"]) as other:
            first, answer = await asked(hog)
            numbers = [first]
            while isinstance(answer, Opened):
                number, answer = await asked(hog)
                numbers.append(number)
            assert isinstance(answer, Busy)
            for number in numbers if busy else []:
                await hog.send(Draft(session=number, round=0, base_len=3), {"ids": np.ones(8, np.int32)})
            assert isinstance((await asked(other))[1], Opened)
            if not busy:
                await hog.send(Draft(session=first, round=0, base_len=3), {"ids": np.ones(1, np.int32)})
                fate = (await hog.receive(first, 20)).message
                assert isinstance(fate, Resync) and "needed for other UEs" in fate.reason
