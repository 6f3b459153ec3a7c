"""Life of the UEs of a cell, in virtual and in real time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from testbed.channel.link_model import OneWay
from testbed.clock import Clock
from testbed.experiments.cell.config import UeGroup
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.deployment.load import LoadUe
from testbed.ue.records import RequestRecord


def dice_of(seed: int, number: int) -> random.Random:
    """Random numbers of the UE of this number: the same in virtual and in real time."""
    return random.Random(f"ue {seed} {number}")


async def send_bytes(group: UeGroup, way: OneWay, clock: Clock, dice: random.Random) -> None:
    """Send messages without content, at a constant rate, for ever."""
    next_s = clock.time() + dice.uniform(0, group.every_s)
    while True:
        await clock.sleep(max(0.0, next_s - clock.time()))
        way.carry(group.message_bytes, lambda: None)
        next_s += group.every_s


async def decode_responses(
    group: UeGroup,
    ue: LoadUe,
    tally: UeTally,
    clock: Clock,
    dice: random.Random,
    prompt: Callable[[int], Sequence[int]],
    seen: Callable[[Any, RequestRecord], object] = lambda prompt, record: None,
) -> None:
    """Decode one response after the other, for ever.

    Args:
        prompt: makes a prompt of a length.
        seen: called with every prompt and its record.
    """
    while True:
        length, tokens = dice.randint(*group.prompt), dice.randint(*group.response)
        ids = prompt(length)
        ended = tally.response(tokens, group.class_tps)
        record = await ue.decode(ids, tokens, tally.round)
        ended()
        seen(ids, record)
        await clock.sleep(group.think_s)
