"""Messages of a small pair, padded on their way up to what a large one would send: a real link then feels its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.channel.link import Frames, Link, Received
from testbed.channel.virtual import Sizer, frame_bytes
from testbed.errors import BadInput
from testbed.experiments.inputs.payloads import sizers
from testbed.experiments.inputs.profile import load_profile
from testbed.protocols.codec import MAX_ARRAY_BYTES, PAD, decode_uplink, encode
from testbed.protocols.quantise import quantised

HEADER_BYTES = 12
"""That naming the padding adds to a header, about; less is not worth padding for."""
DOWNWARD = ("split",)
"""Methods whose downlink grows with the vocabulary: only what a UE sends is padded."""


class PaddedLink:
    """Implements `Link`: tops up every message to the bytes that a sizer gives it, and counts what it sends."""

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
    """Refuse what cannot be padded.

    Raises:
        BadInput: no such profile, one without sizes, or a method whose downlink would have to be padded.
    """
    if profile is None:
        return
    uplink_sizer(profile, 16)
    if wrong := [method for method in methods if method in DOWNWARD]:
        raise BadInput(f"only the uplink is padded, and {wrong[0]} sends its large messages down: leave one out")
