"""Temporary peers of a soak test: one stops answering, one sends garbage; each returns whether it took effect."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import numpy as np

from testbed.channel.link import new_identity
from testbed.protocols.messages import Draft, NeedHidden, Open
from testbed.synthetic import next_token
from tests.support.hostile.liar import Known, Liar
from tests.support.hostile.station import lie
from tests.support.soak.plan import TIMEOUT_S, VOCAB
from tests.support.soak.ue import connected

GARBAGE = 30
"""Number of messages of one hostile peer."""
POSITIONS = 512
SILENT_S = 3.0


async def silent(bind: str, ending: asyncio.Event) -> bool:
    """A UE that stops when its hidden states are queried; returns whether they were."""
    async with connected(bind, new_identity()) as client:
        number, ids = client.new_session(), np.array([1, 2, 3], np.int32)
        await client.send(Open(session=number, protocol="sh", threshold=0.5, hidden_size=4), {"ids": ids})
        await client.receive(number, TIMEOUT_S)
        wrong = (next_token([1, 2, 3], VOCAB, 0) + 1) % VOCAB
        await client.send(Draft(session=number, round=0, base_len=3), {"ids": np.array([wrong], np.int32)})
        asked = isinstance((await client.receive(number, TIMEOUT_S)).message, NeedHidden)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ending.wait(), SILENT_S)
    return asked


async def garbage(bind: str, seed: int) -> bool:
    """A hostile peer; returns whether the BS answered it."""
    answers = Counter[str]()
    await lie(bind, Liar(seed, Known(VOCAB, POSITIONS, sessions=range(8))), GARBAGE, answers)
    return answers.total() > 0
