"""Full-hidden upload (WISV Section III-B, option 1): ids and all hidden states go up in one message."""

from __future__ import annotations

import numpy as np

from testbed.protocols.base import (
    Drafted,
    RoundProtocol,
    Window,
    expect_names,
    read_hidden,
    read_ids,
)  # fmt: skip
from testbed.protocols.codec import AnyArray


class FullHidden(RoundProtocol):
    """One round trip, the largest uplink."""

    kind = "fh"
    judged = True

    # ------------------------------------------------------------ UE side

    def uplink(self, drafted: Drafted) -> dict[str, AnyArray]:
        """`ids` i4 [K], `hidden` f2 [K, d]."""
        return {"ids": drafted.ids, "hidden": np.asarray(drafted.hidden, np.float16)}

    # ------------------------------------------------------------ BS side

    def window(self, arrays: dict[str, AnyArray], hidden_size: int) -> Window:
        """Ids and the hidden states of all of them."""
        expect_names(arrays, "ids", "hidden")
        ids = read_ids(arrays)
        return Window(ids, read_hidden(arrays, len(ids), hidden_size))
