"""Padded messages: as large as the large models' by the cost model, and nothing else about a run is different."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.channel.cost import Sizes, id_bits
from testbed.channel.csi import Csi
from testbed.channel.link import Link, ZmqLink, new_identity
from testbed.clock import WallClock
from testbed.errors import BadInput
from testbed.experiments.inputs.padding import PaddedLink, check_pad, padded
from testbed.protocols import protocol
from testbed.protocols.base import HEADER_UP_BYTES
from testbed.protocols.codec import PAD, decode_uplink, encode
from testbed.protocols.messages import Draft
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.refusals import refuse
from tests.support.stations import VOCAB, station

WISV = Sizes(2048, id_bits(128256))


async def decode(address: str, kind: str, pad: str | None) -> RequestRecord:
    link: Link = ZmqLink(address, new_identity())
    client = Client(link if pad is None else padded(link, pad, 16), WallClock(), 1, 10.0)
    try:
        await client.connect("", VOCAB)
        session = DecodingSession(
            client, SyntheticDrafter(vocab_size=VOCAB, alpha=0.7), protocol(kind), FixedWindow(8), 0.0
        )
        return await session.decode([3, 1, 4], 60, ())
    finally:
        await client.close()


@pytest.mark.parametrize("kind", ["greedy", "fh", "sh"])
async def test_rounds_are_as_large_as_the_profiles_and_their_tokens_the_same(kind: str) -> None:
    async with station() as (_, address):
        small, large = await decode(address, kind, None), await decode(address, kind, "wisv")
    assert small.token_ids == large.token_ids
    assert [r.accepted for r in small.rounds] == [r.accepted for r in large.rounds]
    for before, after in zip(small.rounds, large.rounds, strict=True):
        cost = protocol(kind).cost(after.drafted, after.queried, WISV, Csi(20.0, 20.0, 50.0))
        least = max(before.uplink_bytes, cost.uplink_bits / 8)
        assert least - 6 <= after.uplink_bytes <= least + 2 * (HEADER_UP_BYTES + 16)
        assert after.downlink_bytes == before.downlink_bytes
    if kind == "fh":
        assert large.uplink_bytes > 5 * small.uplink_bytes


async def test_what_arrives_is_what_was_sent() -> None:
    class Caught:
        async def send(self, frames: list[bytes]) -> int:
            self.frames = frames
            return sum(map(len, frames))

    caught = Caught()
    link = PaddedLink(caught, lambda frames: 5000)  # type: ignore[arg-type]
    draft, ids = Draft(session=1, round=2, base_len=3), np.arange(4, dtype=np.int32)
    size = await link.send(encode(draft, {"ids": ids}))
    assert abs(size - 5000) <= 16
    packet = decode_uplink(caught.frames)
    assert [array.name for array in packet.message.arrays] == ["ids", PAD]
    assert list(packet.arrays) == ["ids"] and packet.arrays["ids"].tolist() == ids.tolist()
    assert packet.size_bytes == size


def test_what_cannot_be_padded_is_refused() -> None:
    check_pad(None, ["split"])
    check_pad("wisv", ["greedy", "rejection"])
    refuse(lambda: check_pad("wisv", ["greedy", "split"]), BadInput, "split")
    refuse(lambda: check_pad("nowhere", ["greedy"]), BadInput, "no profile 'nowhere'", "wisv")
