"""The front desk's bounds on what a UE says of itself."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.bs.desk import Desk, Offer
from testbed.bs.sessions import SessionTable
from testbed.errors import ProtocolError
from testbed.protocols.messages import Draft, Hidden, NeedHidden, Open, Opened
from tests.support.stations import client, station

IDS = {"ids": np.array([1, 2, 3], np.int32)}


def open_(hidden_size: int) -> Open:
    return Open(session=1, protocol="sh", threshold=0.0, hidden_size=hidden_size)


@pytest.mark.parametrize("hidden_size", [-1, 0, 2**16 + 1, 2**45, 2**64 - 1])
def test_a_hidden_size_that_cannot_be_is_refused(hidden_size: int) -> None:
    desk = Desk(Offer("synthetic", "", 512, 64, (), 4096), SessionTable())
    with pytest.raises(ProtocolError, match=f"hidden_size must lie in 1..65536, not {hidden_size}"):
        desk.open(b"ue", open_(hidden_size), IDS)
    assert len(desk.sessions) == 0


async def test_the_largest_one_is_served_and_a_wrong_answer_ends_nothing() -> None:
    async with station() as (_, address), client(address) as ue:
        number = ue.new_session()
        await ue.send(open_(2**16), IDS)
        assert isinstance((await ue.receive(number, 5)).message, Opened)
        await ue.send(Draft(session=number, round=0, base_len=3), IDS)
        assert isinstance((await ue.receive(number, 5)).message, NeedHidden)
        await ue.send(Hidden(session=number, round=0), {"hidden": np.zeros((1, 4), np.float16)})
        assert "hidden must be f2" in (await ue.receive(number, 5)).message.reason
        assert len(await ue.rtt_s(2)) == 2
