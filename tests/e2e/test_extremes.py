"""Extreme but finite numbers sent to a base station in a process of its own, which goes on to serve others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from testbed.channel.csi import Csi
from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station
from testbed.protocols import protocol
from testbed.protocols.messages import Draft, Open, Opened
from testbed.synthetic import next_token
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, client

PACE = {"pace": "a100-qwen3-32b"}
"""Passes that take long enough for requests to wait."""
WEAK = Csi(uplink_mbps=5e-324, downlink_mbps=1.0, rtt_ms=1.0)


async def attack(address: str, prompts: int, length: int, speed_tps: float | None, claims: dict[str, Any]) -> None:
    """Sessions with three drafts each, whatever the base station answers; all of them wait at once."""
    async with client(address) as ue:
        numbers = [ue.new_session() for _ in range(prompts)]
        for number in numbers:
            message = Open(
                session=number, protocol="greedy", threshold=0.0, hidden_size=4, window=8, max_tokens=50,
                speed_tps=speed_tps,
            )  # fmt: skip
            await ue.send(message, {"ids": np.full(length, 1, np.int32)})
        bases = {}
        for number in numbers:
            answer = (await ue.receive(number, 10)).message
            bases[number] = length if isinstance(answer, Opened) else 0
        for round_ in range(3):
            for number in numbers:
                draft = Draft(session=number, round=round_, base_len=bases[number], **claims)
                await ue.send(draft, {"ids": np.array([1], np.int32)})
            for number in numbers:
                answer = (await ue.receive(number, 10)).message
                bases[number] += getattr(answer, "accepted", -1) + 1


@pytest.mark.parametrize(
    ("options", "prompts", "length", "speed_tps", "claims"),
    [
        ({"scheduler": "slo"}, 1, 3, 2.0, {"draft_s": 1.7e308}),
        ({"scheduler": "slo"}, 1, 3, 2.0, {"network_s": 1.7e308}),
        ({"window_controller": "on"}, 1, 3, None, {"csi": WEAK}),
        ({"scheduler": "slo", **PACE}, 12, 1500, 1e-310, {}),
        (
            {"scheduler": "slo", "window_controller": "on", **PACE},
            12,
            1500,
            1e-3,
            {"draft_s": 86_400.0, "network_s": 5e-324},
        ),
    ],
)
async def test_extreme_numbers_do_not_end_a_base_station(
    options: dict[str, str], prompts: int, length: int, speed_tps: float | None, claims: dict[str, Any]
) -> None:
    config = ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*", coefficients="a100-qwen3-32b", **options)
    with base_station(config) as ready:
        await attack(ready["bind"], prompts, length, speed_tps, claims)
        async with client(ready["bind"]) as ue:
            drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.8)
            session = DecodingSession(ue, drafter, protocol("greedy"), FixedWindow(4))
            found = (await session.decode([1, 2, 3], 12, ())).token_ids
    ids = [1, 2, 3]
    for token in found:
        assert token == next_token(ids, VOCAB, 0)
        ids.append(token)
    assert len(found) == 12
