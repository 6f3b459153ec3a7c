"""Twice too much for real: a base station process at a profile's pace, UEs of four classes, a crowd for a while.

`make soak` runs it: it takes a minute and a half for each way to serve.
"""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from testbed.config import ServeConfig
from testbed.errors import AdmissionError
from testbed.experiments.runs import processes
from testbed.protocols import protocol
from testbed.synthetic import next_token
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.pace import ConstantPace
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.overload import CLASSES, Response, check_order, phase
from tests.support.stations import VOCAB, client

PROFILE = "a100-qwen3-32b"
DRAFT_S, ALPHA, WINDOW, CAP = 0.02, 0.758, 5, 1
STAY, GUESTS = 24, 60
"""UEs that fit, and those who come on top: twice what a pass of one request after the other carries."""
ARRIVE_S, LEAVE_S, END_S = 20.0, 45.0, 80.0
SETTLE_S = 8.0
SIGMAS = 3.0
"""Standard deviations by which the share of slow responses may differ from virtual time's: which ones fall into the
crowd's half minute is not the same twice.
"""


async def ue(bs: Client, number: int, times: tuple[float, float], begun_s: float, seen: list[Response]) -> int:
    """Decode one response after the other between two times; returns how many were refused a promise."""
    rng, speed = random.Random(f"overload/{number}"), CLASSES[number % len(CLASSES)]
    drafter, refused = SyntheticDrafter(vocab_size=VOCAB, alpha=ALPHA, seed=number), 0
    await asyncio.sleep(max(0.0, times[0] + rng.uniform(0, 3) - (time.monotonic() - begun_s)))
    while (start_s := time.monotonic() - begun_s) < times[1]:
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(20, 60))]
        session = DecodingSession(
            bs, drafter, protocol("greedy"), FixedWindow(WINDOW), pace=ConstantPace(bs.clock, DRAFT_S), speed_tps=speed
        )
        try:
            ids = (await session.decode(prompt, rng.randint(8, 16), ())).token_ids
        except AdmissionError:
            refused += 1
            await asyncio.sleep(1.0)
            continue
        for token in ids:
            assert token == next_token(prompt, VOCAB, 0)
            prompt.append(token)
        seen.append(Response(speed, start_s, time.monotonic() - begun_s, len(ids)))
    return refused


async def load(bind: str) -> tuple[list[Response], int]:
    """All UEs, over a few connections."""
    seen: list[Response] = []
    async with client(bind, timeout_s=120) as one, client(bind, timeout_s=120) as two:
        begun_s = time.monotonic()
        stay = [ue((one, two)[n % 2], n, (0.0, END_S), begun_s, seen) for n in range(STAY)]
        crowd = [ue((one, two)[n % 2], STAY + n, (ARRIVE_S, LEAVE_S), begun_s, seen) for n in range(GUESTS)]
        refused = await asyncio.gather(*stay, *crowd)
    return seen, sum(refused)


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("admission", [False, True])
def test_twice_too_much_load_degrades_in_order_and_passes(admission: bool) -> None:
    config = ServeConfig(
        engine="synthetic", bind="tcp://127.0.0.1:*", scheduler="slo", max_batch=CAP, coefficients=PROFILE,
        pace=PROFILE, max_sessions_per_ue=1024, admission=admission,
    )  # fmt: skip
    with processes.base_station(config) as ready:
        seen, refused = asyncio.run(load(ready["bind"]))
    before = phase(seen, SETTLE_S / 2, ARRIVE_S)
    during = phase(seen, ARRIVE_S + SETTLE_S / 2, LEAVE_S)
    after = phase(seen, LEAVE_S + SETTLE_S, END_S + 30)
    print(f"\nadmission {admission}: {len(seen)} responses, {refused} refusals; speed over the promised one, by class")
    for name, found in (("before", before), ("during", during), ("after", after)):
        print(f"{name:8}{found}")
    check_order(before, during, after, refused=refused, admission=admission, sigmas=SIGMAS)
