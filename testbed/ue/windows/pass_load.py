"""What drafted tokens add to the passes that a UE shares with others."""

from __future__ import annotations

from testbed.ue.windows.gain import ForgettingLine

MEMORY = 32.0
"""Memory of the estimates, in passes."""
CROWDED = 0.1
"""What a token more of each UE that drafts adds to a pass, relative to it, from which on all of them count."""
MOST_ALIKE = 4096.0
"""Largest s."""
START_OWN = 1.0
"""Drafted tokens of a UE per pass before it has drafted, with the weight of one pass."""


class PassLoad:
    """Time of passes as a line over the drafted tokens of all UEs, and the number s of UEs that draft as this one does:
    1 and the drafted tokens of the others, relative to its own while it drafts.

    A choice that counts what s UEs add to a pass is the best one for s equal UEs together. One that counts this UE's
    own tokens alone takes longer windows, which make passes long for all.
    """

    def __init__(self) -> None:
        self._line = ForgettingLine(MEMORY)
        self._keep = 1 - 1 / MEMORY
        self._others = self._passes = 0.0
        self._own, self._active = START_OWN, 1.0

    def add(self, own: int, others: int, seconds: float, drafts: bool = True) -> None:
        """Learn from a pass.

        Args:
            own: drafted tokens of this UE in it.
            others: those of the other UEs.
            drafts: whether this UE drafts at present.
        """
        self._line.add(own + others, seconds)
        self._others = self._keep * self._others + others
        self._passes = self._keep * self._passes + 1
        if drafts:
            self._own = self._keep * self._own + own
            self._active = self._keep * self._active + 1

    @property
    def crowded(self) -> bool:
        """Whether others draft as well, so much that a token more of each of them would lengthen passes noticeably."""
        return self._others > 0 and self.token_s > CROWDED * self.alone_s

    @property
    def alike(self) -> float:
        """s"""
        if not self._passes:
            return 1.0
        own, others = self._own / self._active, self._others / self._passes
        return 1 + others / own if others < MOST_ALIKE * own else MOST_ALIKE if others else 1.0

    @property
    def token_s(self) -> float:
        """What one token more of each of the s UEs adds to a pass."""
        return self.alike * max(0.0, self._line.slope)

    @property
    def others_s(self) -> float:
        """The same without the token of this UE."""
        return (self.alike - 1) * max(0.0, self._line.slope)

    @property
    def alone_s(self) -> float:
        """A pass without drafted tokens of this UE."""
        return self._line.at(self._others / self._passes) if self._passes else 0.0

    @property
    def without_s(self) -> float:
        """A pass without any drafted tokens."""
        return self._line.at(0.0)
