"""Uplink messages of a small pair, padded to the sizes of a large one, so that a real link carries as many bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.channel.cost import Sizes
from testbed.channel.frames import Frames
from testbed.channel.link import Link, Received
from testbed.channel.virtual import Sizer, frame_bytes
from testbed.errors import BadInput
from testbed.experiments.inputs.payloads import sizers
from testbed.experiments.inputs.profile import load_profile
from testbed.protocols import PROTOCOLS
from testbed.protocols.base import RoundProtocol
from testbed.protocols.codec import MAX_ARRAY_BYTES, PAD, decode_uplink, encode
from testbed.protocols.quantise import quantised

HEADER_BYTES = 12
"""Bytes that the name of the padding adds to a header, about; less is not padded."""


class PaddedLink:
    """Implements `Link`: pads every message to the bytes that a sizer gives it, and counts what it sends."""

    def __init__(self, link: Link, sizer: Sizer) -> None:
        self._link, self._sizer = link, sizer

    async def send(self, frames: Frames) -> int:
        """Send one message; returns its bytes, padding included."""
        missing = min(self._sizer(frames) - frame_bytes(frames) - HEADER_BYTES, MAX_ARRAY_BYTES)
        if missing <= 0:
            return await self._link.send(frames)
        packet = decode_uplink(frames)
        return await self._link.send(encode(packet.message, {**packet.arrays, PAD: np.zeros(missing, np.uint8)}))

    async def recv(self, timeout_s: float) -> Received:
        """Next message, as it came."""
        return await self._link.recv(timeout_s)

    def close(self) -> None:
        """Drop the connection."""
        self._link.close()


def padded(link: Link, profile: str, hidden_bits: int) -> Link:
    """A link whose messages are as large as those of a device profile's models."""
    return PaddedLink(link, uplink_sizer(profile, hidden_bits))


def uplink_sizer(profile: str, hidden_bits: int) -> Sizer:
    """Bytes of uplink messages for the models of a device profile, by name or file.

    Raises:
        BadInput: no such profile, or one that names no sizes.
    """
    found = load_profile(profile)
    if found.sizes is None:
        raise BadInput(f"profile {found.name} names no vocab_size and hidden_size to pad messages to")
    return sizers(quantised(found.sizes, hidden_bits), found.overheads)[0]


def check_pad(profile: str | None, methods: Sequence[str]) -> None:
    """Refuse a profile or a method that messages cannot be padded for.

    Raises:
        BadInput: no such profile, one without sizes, or a method whose downlink would have to be padded.
    """
    if profile is None:
        return
    uplink_sizer(profile, 16)
    if wrong := [method for method in methods if method in PROTOCOLS and _grows_down(PROTOCOLS[method])]:
        raise BadInput(f"only the uplink is padded, and {wrong[0]} sends its large messages down: leave one out")


def _grows_down(protocol: RoundProtocol) -> bool:
    """Whether the downlink of a protocol depends on the sizes of the models."""
    small, large = Sizes(hidden_size=1, vocab_size=1), Sizes(hidden_size=2, vocab_size=2)
    return protocol.payload(1, 1, small).downlink_bits != protocol.payload(1, 1, large).downlink_bits
