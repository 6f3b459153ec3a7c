"""Verification by equality: ids up; the first position that differs from the target's token ends the window."""

from __future__ import annotations

from testbed.protocols.base import RoundProtocol


class Greedy(RoundProtocol):
    """K ids up, position and token down: the base protocol as it stands."""

    kind = "greedy"
    about = "ids up; the first token that differs from the target's ends the window"


class Coupled(Greedy):
    """Greedy verification of samples: both sides choose tokens with the same noise (`protocols.sampling.Coupling`)."""

    kind = "coupled"
    about = "as greedy, at any temperature: UE and BS sample with shared noise"
    coupled = True
