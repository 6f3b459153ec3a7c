"""Texts whose keys and values unused sequences still hold: a conversation that comes back, grown by a turn, has only
the new part computed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TAIL = 64
"""Last tokens of a text that may differ when it comes back: drafted ones that were rejected, and an answer's end, which
a chat template may write in other tokens."""


SHORTER = 16
"""Tokens that a conversation may have lost when it comes back: those that were rejected. A repeated prompt, as in a
comparison of methods, has lost its whole output, so it is computed again.
"""


class KeptText(NamedTuple):
    """What an unused sequence holds."""

    ids: NDArray[np.int32]
    owner: str


class KeptTexts:
    """Texts by the place of their sequence, the oldest first."""

    def __init__(self) -> None:
        self._texts: OrderedDict[int, KeptText] = OrderedDict()

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, place: int) -> bool:
        return place in self._texts

    def keep(self, place: int, ids: Sequence[int] | NDArray[np.int32], owner: str = "") -> None:
        """Add the text of a sequence that is not used any more."""
        self._texts[place] = KeptText(np.asarray(ids, np.int32), owner)

    def grown(self, ids: Sequence[int] | NDArray[np.int32], owner: str = "") -> tuple[int, int] | None:
        """Place of the text that these ids continue, and the number of leading ids that they have in common, at most
        all but the last; None: there is none. Only the owner's own texts count, and others with the same beginning,
        such as worked examples, do not.
        """
        new = np.asarray(ids, np.int32)
        found = [
            (common_prefix(text.ids, new, len(new) - 1), place, len(text.ids))
            for place, text in self._texts.items()
            if text.owner == owner and len(new) > len(text.ids) - SHORTER
        ]
        continued = [(common, place) for common, place, size in found if common >= max(size - TAIL, size / 2, 1)]
        if not continued:
            return None
        common, place = max(continued)
        return place, common

    def take(self, place: int) -> NDArray[np.int32]:
        """Remove a text, whose sequence is used again; returns its ids."""
        return self._texts.pop(place).ids

    def places(self) -> list[int]:
        """Places of all texts, the oldest first."""
        return list(self._texts)


def common_prefix(left: NDArray[np.int32], right: NDArray[np.int32], most: int) -> int:
    """Leading ids that two sequences have in common, at most `most`."""
    most = min(most, len(left), len(right))
    differing = np.flatnonzero(left[:most] != right[:most])
    return int(differing[0]) if len(differing) else most
