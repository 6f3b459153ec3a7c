"""The connection of a UE that is handed over, message by message."""

from __future__ import annotations

import asyncio

import numpy as np

from testbed.channel.frames import Frames
from testbed.channel.link_model import OneWay
from testbed.channel.virtual import VirtualServerLink
from testbed.experiments.cell.several.ue import RoamingClient
from testbed.protocols.codec import decode_uplink, encode
from testbed.protocols.messages import VERSION, Close, Draft, Message, Open, Resync, Welcome
from testbed.virtual_time import VirtualClock, run_virtually


class Now(OneWay):
    """A link without delay."""

    def carry(self, size_bytes: float, deliver: object) -> None:
        assert callable(deliver)
        deliver()


def opened(session: int) -> Open:
    return Open(session=session, protocol="greedy", threshold=0.0, hidden_size=1)


async def connected() -> tuple[RoamingClient, VirtualServerLink]:
    """A client, and the base station that serves it."""
    client, station = RoamingClient(VirtualClock(), 1e6), VirtualServerLink()
    client.join(station.attach(b"ue@1", Now(), Now(), patient=True))
    welcome = Welcome(
        version=VERSION,
        model="m",
        hidden_size=1,
        vocab_size=8,
        end_ids=(),
        protocols=("greedy",),
        max_window=8,
        max_positions=64,
    )
    await station.send(b"ue@1", encode(welcome))
    await client.connect("", 8)
    assert len(heard(station)) == 1
    return client, station


def heard(station: VirtualServerLink) -> list[Message]:
    """What has arrived at a base station since the last call."""
    found: list[Frames] = []
    while not station._mail.empty():
        found.append(station._mail.get_nowait()[1])
    return [decode_uplink(frames).message for frames in found]


def test_a_window_for_a_base_station_that_does_not_know_the_session_is_not_sent() -> None:
    async def run() -> None:
        client, first = await connected()
        number, ids = client.new_session(), {"ids": np.array([1], np.int32)}
        await client.send(opened(number), ids)
        client.leave()
        assert await client.send(Draft(session=number, round=0, base_len=1), ids) > 0  # lost on the way
        second = VirtualServerLink()
        client.join(second.attach(b"ue@2", Now(), Now(), patient=True))
        assert await client.send(Draft(session=number, round=0, base_len=1), ids) == 0
        assert isinstance((await client.receive(number, 1.0)).message, Resync)
        await client.send(opened(number), ids)
        await client.send(Draft(session=number, round=0, base_len=1), ids)
        assert [type(message) for message in heard(first)] == [Open]
        assert [type(message) for message in heard(second)] == [Open, Draft]

    run_virtually(run())


def test_a_reader_that_waits_is_told_and_the_old_base_station_is_not_heard_any_more() -> None:
    async def run() -> None:
        client, first = await connected()
        number = client.new_session()
        reader = asyncio.ensure_future(client.receive(number, 10.0))
        await asyncio.sleep(0.1)
        client.leave()
        client.join(VirtualServerLink().attach(b"ue@2", Now(), Now(), patient=True))
        assert isinstance((await reader).message, Resync)
        await first.send(b"ue@1", encode(Resync(session=number, reason="late")))
        await asyncio.sleep(0.1)
        assert not client._mail[number]._packets
        first.detach(b"ue@1", [encode(Close(session=number))])
        assert [type(message) for message in heard(first)] == [Close]

    run_virtually(run())
