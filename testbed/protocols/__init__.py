"""Messages, wire codec, and one file per protocol; `PROTOCOLS` is the registry.

An installed package adds a protocol by an entry point in the group `testbed.protocols`, which names an instance of a
`RoundProtocol` subclass.
"""

from __future__ import annotations

from testbed.protocols.base import RoundProtocol
from testbed.protocols.fh import FullHidden
from testbed.protocols.greedy import Coupled, Greedy, UncertaintySkip
from testbed.protocols.rejection_sampling import RejectionSampling, SplitSampling
from testbed.protocols.sh import SelectiveHidden
from testbed.registry import Registry

PROTOCOLS: Registry[RoundProtocol] = Registry(
    "protocol",
    "testbed.protocols",
    Greedy(),
    FullHidden(),
    SelectiveHidden(),
    RejectionSampling(),
    SplitSampling(),
    Coupled(),
    UncertaintySkip(),
    of=RoundProtocol,
)

TARGET_ONLY = "target-only"
"""Kind of a session in which the BS decodes alone and streams its tokens."""


def protocol(kind: str) -> RoundProtocol:
    """The protocol of that kind.

    Raises:
        BadInput: unknown kind; the message lists the known ones.
    """
    return PROTOCOLS.choose(kind)
