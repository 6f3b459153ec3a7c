"""Fixed weights of a cell behind the relay, with real sockets, beside the same in virtual time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from testbed.channel.link_model import Carrier
from testbed.channel.proxy import Proxy, precise_loop
from testbed.channel.radio.config import ConstantSource, RadioConfig
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.model import RadioUe
from testbed.tasks import cancel
from tests.channel.radio.test_htb import BPS, cell

RADIO = RadioConfig(bandwidth_hz=BPS / 2, source=ConstantSource(bits_per_s_per_hz=2.0), scheduler="weights")
HOST, SETTLE_S, SECONDS, TIMER_S = "127.0.0.1", 1.0, 3.0, 0.2


async def relayed(weights: tuple[float, ...]) -> list[float]:
    """Bits per second of each UE that arrive while all send as much as they can."""
    arrived = [0] * len(weights)

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(2**16):
                arrived[data[0]] += len(data)
        writer.transport.abort()

    async def send(ue: int, port: int) -> None:
        _, writer = await asyncio.open_connection(HOST, port)
        try:
            while True:
                writer.write(bytes([ue]) * 2**15)
                await writer.drain()
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(drop, HOST, 0)
    radio = RadioCell(RADIO, RADIO.air([RadioUe(0)] * len(weights)))

    def relay(ue: int, weight: float) -> Proxy:
        def make(connection: int) -> tuple[Carrier, Carrier]:
            return radio.port(ue, True, weight), radio.port(ue, False, weight)

        return Proxy((HOST, server.sockets[0].getsockname()[1]), make)

    relays = [relay(ue, weight) for ue, weight in enumerate(weights)]
    tasks = [asyncio.create_task(send(ue, await one.start(HOST, 0))) for ue, one in enumerate(relays)]
    await asyncio.sleep(SETTLE_S)
    loop = asyncio.get_running_loop()
    while (start_s := await punctual_s(loop)) is None:
        continue  # slots that a machine missed while it stood still are served at once
    before = list(arrived)
    await asyncio.sleep(SECONDS)
    seconds = loop.time() - start_s
    rates = [8 * (after - first) / seconds for after, first in zip(arrived, before, strict=True)]
    await cancel(*tasks)
    for one in relays:
        await one.close()
    server.close()
    await asyncio.sleep(0.1)  # connections end
    return rates


async def punctual_s(loop: asyncio.AbstractEventLoop) -> float | None:
    """The time, if a timer has just come in time; else None."""
    asked_s = loop.time()
    await asyncio.sleep(TIMER_S)
    now_s = loop.time()
    return now_s if now_s - asked_s < 1.2 * TIMER_S else None


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (4.0, 2.0, 1.0)])
def test_weights_divide_the_relayed_cell_as_the_virtual_one(weights: tuple[float, ...]) -> None:
    loop = precise_loop()
    try:
        relayed_bps = loop.run_until_complete(relayed(weights))
    finally:
        loop.close()
    virtual_bps = cell(weights)
    assert 0.5 * BPS < sum(relayed_bps) <= 1.02 * BPS  # less, where the machine is too busy to serve every slot
    shares = [[rate / sum(rates) for rate in rates] for rates in (relayed_bps, virtual_bps)]
    assert shares[0] == pytest.approx(shares[1], rel=0.05)
