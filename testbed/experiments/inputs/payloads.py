"""How many bytes a message takes on a virtual link where a small pair stands for a large one (WISV eqs. 3–9)."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.channel.cost import PROBABILITY_BITS, Overheads, Sizes, feedback_bits, position_bits
from testbed.channel.link import Frames
from testbed.channel.virtual import Sizer
from testbed.protocols.codec import AnyArray, decode_downlink, decode_uplink
from testbed.protocols.messages import Draft, Hidden, NeedHidden, Open, Verdict

OWN, REJECTION = "own", "rejection"
PAYLOADS = (OWN, REJECTION)
"""What a window carries up: what its protocol says, or also the whole draft distributions, as "SD reject" does."""


def sizers(sizes: Sizes, overheads: Overheads, payload: str = OWN) -> tuple[Sizer, Sizer]:
    """Bytes of uplink and of downlink messages for models of these sizes; they add up to the cost model's. Where hidden
    states travel below 16 bits, the sizes are `quantised`.

    A prompt goes up as ids, and each greeting or handshake as its overhead alone.
    """
    distribution_bits = PROBABILITY_BITS * sizes.vocab_size if payload == REJECTION else 0
    window = [0]

    def up(frames: Frames) -> int:
        packet = decode_uplink(frames)
        bits = overheads.uplink_bits
        if isinstance(packet.message, Open):
            bits += len(packet.arrays["ids"]) * sizes.id_bits
        elif isinstance(packet.message, Draft):
            window[0] = len(packet.arrays["ids"])
            bits += window[0] * (sizes.id_bits + max(distribution_bits, _probability_bits(packet.arrays, sizes)))
            bits += len(packet.arrays.get("hidden", ())) * sizes.vector_bits
        elif isinstance(packet.message, Hidden):
            bits += len(packet.arrays["hidden"]) * sizes.vector_bits
        return _bytes(bits)

    def down(frames: Frames) -> int:
        packet = decode_downlink(frames)
        message = packet.message
        bits = overheads.downlink_bits
        if isinstance(message, NeedHidden):
            bits += message.count * position_bits(window[0])
        elif isinstance(message, Verdict):
            bits += feedback_bits(window[0], sizes)
            bits += PROBABILITY_BITS * sizes.vocab_size if "target" in packet.arrays else 0
        return _bytes(bits)

    return up, down


def _probability_bits(arrays: Mapping[str, AnyArray], sizes: Sizes) -> int:
    """Bits of probabilities that go up with each drafted token: a whole distribution, its own probability, or none."""
    if "q" not in arrays:
        return 0
    return PROBABILITY_BITS * (sizes.vocab_size if arrays["q"].ndim == 2 else 1)


def _bytes(bits: int) -> int:
    return -(-bits // 8)
