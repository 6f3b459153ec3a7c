"""What a base station tells the controller of a cell, and what that decides.

Between processes they are framed as those of the live view (`bs/monitor/wire.py`): the base station sends
`StationReport`, the controller `Decisions`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from testbed.protocols.messages import NO_HINT

MOST_BYTES = 2**20
"""Longest message of a controller: decisions for some 20,000 UEs."""
Factor = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class _ControlMessage(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


class RoundSeen(_ControlMessage, frozen=True):
    """A round was committed."""

    ue: bytes
    """Identity of its UE."""
    session: int
    """Number of its session, of that UE."""
    drafted: int
    accepted: int
    cached: int
    """Tokens found in the prefix cache."""
    draft_s: float
    """Drafting time, as its `Draft` states it."""
    candidates: int | None = None
    """Drafted tokens that differ from the target's; None: it has no drafted tokens, or a protocol without a judge."""
    kept: int = 0
    """Those of them that the judge kept."""
    threshold: float = 0.0
    """θ by which it did."""
    ahead: bool = False
    """Whether it was drafted ahead: its drafting time includes the guess of the token before it."""
    stay_s: float = 0.0
    """Time in the queue and in the pass."""
    new: int = 0
    """Tokens computed, those found in the prefix cache left out."""
    period_s: float = 0.0
    """Time since the round of its session before it arrived, which bounds what its UE can have drafted; 0: it is the
    first."""


class SessionEnded(_ControlMessage, frozen=True):
    """A session was closed or expired."""

    ue: bytes
    session: int


Event: TypeAlias = RoundSeen | SessionEnded


class StationReport(_ControlMessage, frozen=True):
    """Events since the last report, in order, and counters since the start."""

    events: list[Event]
    passes: int
    busy_s: float
    """Time in passes."""


class Decided(_ControlMessage, frozen=True):
    """What was decided for one UE."""

    window: Annotated[int, msgspec.Meta(ge=NO_HINT, le=2**15)] = NO_HINT
    """Window to hint; 0: the base station decodes alone; `NO_HINT`: none."""
    protocol: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Protocol to hint; empty: no change."""
    worth: Factor = 1.0
    """Worth of a token of this UE for the order of batches, relative to others."""
    weight: Factor | None = None
    """Its weight on the radio, for the live view; None: weights are not decided."""
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """θ of its judge, at most the one that it requested; None: that one."""
    lookahead: Annotated[int, msgspec.Meta(ge=NO_HINT, le=1)] = NO_HINT
    """Lookahead to hint; `NO_HINT`: no change."""


class Decisions(_ControlMessage, frozen=True):
    """What was decided, by identity of the UE. Others keep their windows and protocols, and a worth of 1."""

    ues: dict[bytes, Decided]
    first: Annotated[int, msgspec.Meta(ge=NO_HINT, le=2**15)] = NO_HINT
    """Window to hint to UEs about which nothing was decided yet; `NO_HINT`: none."""
