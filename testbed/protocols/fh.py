"""Full-hidden upload (WISV Section III-B, option 1): ids and all hidden states go up in one message."""

from __future__ import annotations

from testbed.channel.cost import Payload, Sizes, full_hidden
from testbed.protocols.base import (
    Drafted,
    RoundProtocol,
    Window,
    expect_names,
    hidden_arrays,
    hidden_names,
    read_hidden,
    read_ids,
)  # fmt: skip
from testbed.protocols.codec import AnyArray
from testbed.protocols.quantise import FULL_BITS


class FullHidden(RoundProtocol):
    """One round trip, the largest uplink."""

    kind = "fh"
    about = "ids and all hidden states up; the judge decides on mismatched tokens"
    judged = True

    # ------------------------------------------------------------ UE side

    def uplink(self, drafted: Drafted) -> dict[str, AnyArray]:
        """`ids` i4 [K] and K hidden states: see `hidden_arrays`."""
        return {"ids": drafted.ids, **hidden_arrays(drafted.hidden, drafted.hidden_bits)}

    # ------------------------------------------------------------ BS side

    def window(self, arrays: dict[str, AnyArray], hidden_size: int, hidden_bits: int = FULL_BITS) -> Window:
        """Ids and the hidden states of all of them."""
        expect_names(arrays, "ids", *hidden_names(hidden_bits))
        ids = read_ids(arrays, least=0)
        return Window(ids, read_hidden(arrays, len(ids), hidden_size, hidden_bits))

    # ------------------------------------------------------------ payload

    def payload(self, window: int, queried: int, sizes: Sizes) -> Payload:
        """WISV eqs. 4 and 5."""
        return full_hidden(window, sizes)
