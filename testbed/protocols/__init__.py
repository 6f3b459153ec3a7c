"""Messages, wire codec, and one file per protocol; `PROTOCOLS` is the registry."""

from __future__ import annotations

from testbed.errors import BadInput
from testbed.protocols.base import RoundProtocol
from testbed.protocols.fh import FullHidden
from testbed.protocols.greedy import Greedy
from testbed.protocols.rejection_sampling import RejectionSampling, SplitSampling
from testbed.protocols.sh import SelectiveHidden

PROTOCOLS: dict[str, RoundProtocol] = {
    p.kind: p for p in (Greedy(), FullHidden(), SelectiveHidden(), RejectionSampling(), SplitSampling())
}

TARGET_ONLY = "target-only"
"""Kind of a session in which the BS decodes alone and streams its tokens."""


def protocol(kind: str) -> RoundProtocol:
    """The protocol of that kind.

    Raises:
        BadInput: unknown kind; the message lists the known ones.
    """
    if kind not in PROTOCOLS:
        raise BadInput(f"unknown protocol {kind!r}; known: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[kind]
