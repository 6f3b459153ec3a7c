"""Selective-hidden upload (WISV Section III-B, option 2): ids first; hidden states of the mismatches on request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.protocols.base import Drafted, RoundProtocol
from testbed.protocols.codec import AnyArray


class SelectiveHidden(RoundProtocol):
    """The smallest uplink, and a second round trip wherever something mismatches."""

    kind = "sh"
    judged = True

    # ------------------------------------------------------------ UE side

    def reveal(self, drafted: Drafted, positions: Sequence[int]) -> dict[str, AnyArray]:
        """`hidden` f2 [m, d]: the rows of the positions asked for, in their order."""
        return {"hidden": np.asarray(drafted.hidden[list(positions)], np.float16)}

    # ------------------------------------------------------------ BS side

    def asks_for(self, candidates: Sequence[int]) -> Sequence[int]:
        """All candidates: each may be judged, since those before it may be kept."""
        return candidates
