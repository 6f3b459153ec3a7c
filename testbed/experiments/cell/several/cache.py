"""Prefix cache of a base station that takes over sessions of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from testbed.experiments.deployment.traffic_bs import PrefixCache


class Moved(NamedTuple):
    """A session that comes from another base station."""

    tokens: int
    """Tokens whose keys and values the other one had."""
    here: bool
    """Whether they have been moved."""
    again: Callable[[int], object] = lambda tokens: None
    """Told how many of them are computed again, in the session's first pass."""


def _owner(session: str) -> str:
    """A session's UE and number, which are known before it is opened."""
    return session.rpartition("/")[0]


def session_of(ue: bytes, number: int) -> str:
    """The same for a UE's identity and its number of the session."""
    return f"{ue.hex()}/{number}"


class RoamingCache(PrefixCache):
    """A `PrefixCache` that counts what is computed again for sessions that other base stations had."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, tail=True)
        self._coming: dict[str, Moved] = {}

    def leave(self, owner: str) -> Moved:
        """What a session leaves; see `session_of`. Tokens that it has not computed since it came count, too."""
        before = self._coming.pop(owner, None)
        held = sum(tokens for session, tokens in self._held.items() if _owner(session) == owner)
        return Moved(held, True) if before is None or held else before

    def come(self, owner: str, moved: Moved) -> None:
        """Expect a session."""
        self._coming[owner] = moved

    def cached(self, session: str) -> int:
        """See `PrefixCache.cached`."""
        moved = self._coming.get(_owner(session)) if self._coming else None
        if moved is not None and moved.here and session not in self._held:
            super().hold(session, moved.tokens)
        return super().cached(session)

    def hold(self, session: str, tokens: int) -> None:
        """See `PrefixCache.hold`."""
        if self._coming and (owner := _owner(session)) in self._coming:
            cached, moved = self.cached(session), self._coming.pop(owner)
            moved.again(max(0, min(moved.tokens, tokens) - cached))
        super().hold(session, tokens)
