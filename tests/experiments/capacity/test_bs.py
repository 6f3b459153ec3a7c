"""Reservations of the verifier's memory in capacity runs, and what their schedulers are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.pending import Pending
from testbed.bs.scheduling.base import Scheduler
from testbed.experiments.capacity.bs import Observed, Reservation
from testbed.virtual_time import VirtualClock, run_virtually


def test_reservations_are_served_in_order_and_never_beyond_the_room() -> None:
    async def run() -> list[int]:
        memory, order, held, most = Reservation(100), [], 0, 0
        clock = VirtualClock()

        async def one(number: int, tokens: int) -> None:
            nonlocal held, most
            async with memory.reserved(tokens):
                order.append(number)
                held += tokens
                most = max(most, held)
                await clock.sleep(1.0)
                held -= tokens

        await asyncio.gather(*(one(i, tokens) for i, tokens in enumerate((60, 50, 10, 10, 90, 5))))
        assert most <= 100
        assert clock.time() == pytest.approx(3.0)
        return order

    assert run_virtually(run()) == [0, 1, 2, 3, 4, 5]


class Shown(Scheduler):
    """Records what it is shown and takes the first request."""

    def __init__(self) -> None:
        self.plans: list[list[Pending]] = []

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        self.plans.append(list(pending))
        return list(pending[:1])


def waiting(session: str, ahead_s: float) -> Pending:
    return Pending(VerifyRequest(session, np.arange(9, dtype=np.int32), np.zeros(2, np.int32)), 1.0, 0, ahead_s=ahead_s)


@pytest.mark.parametrize("each_round", [True, False])
def test_leads_of_earlier_rounds_are_hidden_if_each_round_stands_alone(each_round: bool) -> None:
    shown = Shown()
    observed = Observed(shown, None, each_round, 0.0, 0.0, 0, None)
    first, second, third = waiting("a", 0.5), waiting("b", -2.0), waiting("a", 0.25)
    assert [item.request for item in observed.plan([first, second], 2.0)] == [first.request]
    evicted = replace(second, computed=4)
    for pending in ([second, third], [evicted, third]):
        observed.plan(pending, 3.0)
    assert [[item.request for item in plan] for plan in shown.plans] == [
        [item.request for item in plan] for plan in ([first, second], [second, third], [evicted, third])
    ]
    assert [[item.computed for item in plan] for plan in shown.plans] == [[0, 0], [0, 0], [4, 0]]
    leads = [[0.5, -2.0], [-2.0, 0.25], [-2.0, 0.25]]
    assert [[item.ahead_s for item in plan] for plan in shown.plans] == ([[0.0] * 2] * 3 if each_round else leads)
