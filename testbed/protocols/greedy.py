"""Greedy verification: ids up; the first position that differs from the target's argmax ends the window."""

from __future__ import annotations

from testbed.protocols.base import RoundProtocol


class Greedy(RoundProtocol):
    """K ids up, position and token down: the base protocol as it stands."""

    kind = "greedy"
    about = "ids up; the first token that differs from the target's ends the window"
