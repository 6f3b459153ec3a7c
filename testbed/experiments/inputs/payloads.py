"""Bytes of each message on a virtual link where a small pair stands for a large one (WISV eqs. 3–9)."""

from __future__ import annotations

from collections.abc import Collection

from testbed.channel.cost import PROBABILITY_BITS, Overheads, Payload, Sizes, full_distributions
from testbed.channel.frames import Frames
from testbed.channel.virtual import Sizer
from testbed.protocols import PROTOCOLS
from testbed.protocols.base import RoundProtocol
from testbed.protocols.codec import decode_downlink, decode_uplink
from testbed.protocols.greedy import Greedy
from testbed.protocols.messages import Draft, Hidden, NeedHidden, Open, Verdict

GREEDY: RoundProtocol = Greedy()
"""Stands in where a session has no protocol: `target-only`."""
OWN, REJECTION = "own", "rejection"
PAYLOADS = (OWN, REJECTION)
"""Payload of a window: what its protocol says, or also the whole draft distributions, as "SD reject" does."""


def sizers(sizes: Sizes, overheads: Overheads, payload: str = OWN) -> tuple[Sizer, Sizer]:
    """Bytes of uplink and of downlink messages of one link, for models of these sizes.

    The messages of a round add up to what its protocol's `payload` says, each rounded up to whole bytes. A prompt goes
    up as ids, and each greeting or handshake as its overhead alone.

    Args:
        sizes: `quantised` where hidden states travel below 16 bits.
        payload: one of `PAYLOADS`.
    """
    link = _LinkSizes(sizes, overheads, payload == REJECTION)
    return link.up, link.down


class _LinkSizes:
    """Sizes of the messages of one link, by the protocol and the latest window of each session."""

    def __init__(self, sizes: Sizes, overheads: Overheads, distributions: bool) -> None:
        self._sizes, self._overheads, self._distributions = sizes, overheads, distributions
        self._protocols: dict[int, RoundProtocol] = {}
        self._of: dict[int, Sizes] = {}
        """Sizes by session, where its draft distributions are sparse or coarse."""
        self._windows: dict[int, int] = {}
        self._latest = 0
        """Window of the link's latest draft; a verdict of a session that has drafted nothing is as long as its."""

    def up(self, frames: Frames) -> int:
        """Bytes of an uplink message."""
        packet = decode_uplink(frames)
        message, bits = packet.message, self._overheads.uplink_bits
        if isinstance(message, Open):
            self._protocols[message.session] = PROTOCOLS.get(message.protocol, GREEDY)
            self._of[message.session] = self._sizes._replace(q_top=message.q_top, q_bits=message.q_bits)
            bits += len(packet.arrays["ids"]) * self._sizes.id_bits
        elif isinstance(message, Draft):
            self._windows[message.session] = self._latest = len(packet.arrays["ids"])
            bits += self._draft_bits(message.session, packet.arrays)
        elif isinstance(message, Hidden):
            revealed = max(map(len, packet.arrays.values()), default=0)
            bits += self._payload(message.session, revealed).uplink_bits - self._payload(message.session).uplink_bits
        return _bytes(bits)

    def down(self, frames: Frames) -> int:
        """Bytes of a downlink message."""
        message, bits = decode_downlink(frames).message, self._overheads.downlink_bits
        if isinstance(message, NeedHidden):
            asked = self._payload(message.session, message.count)
            bits += asked.downlink_bits - self._payload(message.session).downlink_bits
        elif isinstance(message, Verdict):
            whole = self._payload(message.session, message.queried)
            alone = whole if whole.round_trips == 1 else self._payload(message.session)
            bits += alone.downlink_bits
        return _bytes(bits)

    def _payload(self, session: int, queried: int = 0, arrays: Collection[str] = ()) -> Payload:
        protocol = self._protocols.get(session, GREEDY).carried(arrays)
        sizes = self._of.get(session, self._sizes)
        return protocol.payload(self._windows.get(session, self._latest), queried, sizes)

    def _draft_bits(self, session: int, arrays: Collection[str]) -> int:
        """Bits of a window with these arrays; whole draft distributions are added where they are to be counted."""
        own = self._payload(session, arrays=arrays).uplink_bits
        if not self._distributions:
            return own
        window = self._windows[session]
        if self._protocols.get(session, GREEDY).sampled:
            return max(own, full_distributions(window, self._sizes).uplink_bits)
        return own + window * PROBABILITY_BITS * self._sizes.vocab_size


def _bytes(bits: int) -> int:
    return -(-bits // 8)
