"""The protocol of each window of a session: its own, or the one that the base station hints."""

from __future__ import annotations

from collections.abc import Collection

from testbed.errors import BadInput
from testbed.protocols import PROTOCOLS
from testbed.protocols.base import Drafted, RoundProtocol
from testbed.protocols.codec import AnyArray
from testbed.protocols.messages import Verdict


class Uploads:
    """Arrays of the windows of a session, or of several, one after the other.

    Args:
        own: protocol of the session.
        hinted: whether to follow hints between it and `RoundProtocol.beside`.

    Raises:
        BadInput: hints, and a protocol without another one beside it.
    """

    def __init__(self, own: RoundProtocol, hinted: bool = False) -> None:
        if hinted and not own.beside:
            raise BadInput(f"protocol {own.kind} has no other one beside it that a base station could hint")
        self.hinted, self._own = hinted, own
        kinds = (own, PROTOCOLS[own.beside]) if hinted else (own,)
        self._next, self._known = own, {one.kind: one for one in kinds}

    def arrays(self, drafted: Drafted) -> dict[str, AnyArray]:
        """Arrays of the next window."""
        return self._next.uplink(drafted)

    def follow(self, verdict: Verdict) -> None:
        """Take the hint of a verdict; one that was not asked for, or of another protocol, changes nothing."""
        self._next = self._known.get(verdict.protocol, self._next)

    def kind(self, arrays: Collection[str]) -> str:
        """Protocol of a window with these arrays."""
        return self._own.carried(arrays).kind
