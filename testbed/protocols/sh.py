"""Selective-hidden upload (WISV Section III-B, option 2): ids first; hidden states of the mismatches on request."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from testbed.channel.cost import Payload, Sizes, selective_hidden
from testbed.protocols.base import Drafted, RoundProtocol, Window, hidden_arrays
from testbed.protocols.codec import AnyArray
from testbed.protocols.fh import FullHidden
from testbed.protocols.quantise import FULL_BITS

FH = FullHidden()


class SelectiveHidden(RoundProtocol):
    """The smallest uplink, and a second round trip wherever something mismatches."""

    kind = "sh"
    about = "ids up, then the hidden states of mismatched tokens on request; the judge decides on them"
    judged = True
    beside = FH.kind

    def carried(self, arrays: Collection[str]) -> RoundProtocol:
        """FH where hidden states come with the ids."""
        return FH if "hidden" in arrays else self

    # ------------------------------------------------------------ UE side

    def reveal(self, drafted: Drafted, positions: Sequence[int]) -> dict[str, AnyArray]:
        """The hidden states of the positions asked for, in their order: see `hidden_arrays`."""
        return hidden_arrays(drafted.hidden[list(positions)], drafted.hidden_bits)

    # ------------------------------------------------------------ BS side

    def window(self, arrays: dict[str, AnyArray], hidden_size: int, hidden_bits: int = FULL_BITS) -> Window:
        """Ids alone, or a window of FH: its hidden states are then not requested."""
        if (kind := self.carried(arrays)) is not self:
            return kind.window(arrays, hidden_size, hidden_bits)
        return super().window(arrays, hidden_size, hidden_bits)

    def asks_for(self, candidates: Sequence[int]) -> Sequence[int]:
        """All candidates: each may be judged, since those before it may be kept."""
        return candidates

    # ------------------------------------------------------------ payload

    def payload(self, window: int, queried: int, sizes: Sizes) -> Payload:
        """WISV eqs. 4 and 7 to 9."""
        return selective_hidden(window, queried, sizes)
