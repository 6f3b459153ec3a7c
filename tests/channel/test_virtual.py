"""The virtual link keeps the order of messages that arrive at the same time."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from testbed.channel.link_model import Direction, constant
from testbed.channel.virtual import VirtualServerLink
from testbed.virtual_time import run_virtually


@given(st.lists(st.integers(0, 2), min_size=2, max_size=40))
def test_messages_that_arrive_at_the_same_time_keep_their_order(peers: list[int]) -> None:
    """An event loop's heap of timers does not; a window that overtakes its session's opening is never answered."""

    async def sent_and_received() -> list[tuple[bytes, bytes]]:
        server = VirtualServerLink()
        names = [f"ue-{i}".encode() for i in range(3)]
        links = [server.attach(name, Direction(constant()), Direction(constant())) for name in names]
        for number, peer in enumerate(peers):
            await links[peer].send([str(number).encode()])
        found = [await server.recv() for _ in peers]
        return [(peer, frames[0]) for peer, frames in found]

    received = run_virtually(sent_and_received())
    for i in range(3):
        name = f"ue-{i}".encode()
        assert [int(n) for peer, n in received if peer == name] == [n for n, peer in enumerate(peers) if peer == i]


def test_what_a_peer_sent_before_it_left_does_not_arrive_and_its_last_messages_do() -> None:
    """Else a session is opened for a peer that is gone."""

    async def received() -> list[tuple[bytes, bytes]]:
        server = VirtualServerLink()
        gone, other = (
            server.attach(name, Direction(constant()), Direction(constant())) for name in (b"gone", b"other")
        )
        await gone.send([b"open"])
        server.detach(b"gone", [[b"close"]])
        await other.send([b"ping"])
        await asyncio.sleep(100.0)
        return [(peer, frames[0]) for peer, frames in [await server.recv() for _ in range(server._mail.qsize())]]

    assert run_virtually(received()) == [(b"gone", b"close"), (b"other", b"ping")]
