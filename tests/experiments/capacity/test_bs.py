"""Reservations of the verifier's memory in capacity runs."""

from __future__ import annotations

import asyncio

import pytest

from testbed.experiments.capacity.bs import Reservation
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
